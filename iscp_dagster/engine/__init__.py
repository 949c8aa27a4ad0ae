"""One iteration from claim to watermark: joins the lake, ClickHouse and the ISCP log.

Knows nothing of Dagster, which calls it from an asset and an IO manager.
"""
