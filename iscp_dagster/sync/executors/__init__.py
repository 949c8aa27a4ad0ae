"""Code that runs in Spark's executors, where the rows are: no module imports dagster."""
