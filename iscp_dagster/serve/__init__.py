"""The GraphQL server of `iscp serve`: queries of index views, subscriptions of changes."""
