"""Analysis of users' loss and metric functions: shapes, dependence on the batch, their library."""
