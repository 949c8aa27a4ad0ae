"""How subscriptions travel: graphql-transport-ws on websockets."""
