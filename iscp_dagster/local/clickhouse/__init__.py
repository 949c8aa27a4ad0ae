"""The embedded ClickHouse server: chDB behind ClickHouse's HTTP interface."""
