"""Source tables read with Spark: snapshots and changes."""
