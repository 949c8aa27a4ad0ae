"""How iterations read: how much at once, and the changes of views as image rows."""
