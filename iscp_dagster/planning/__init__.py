"""What is due: triggers, news of tables, the look of the runner."""
