"""What runs in Spark's executors, where the rows are: no module of it imports dagster."""
