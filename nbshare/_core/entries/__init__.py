"""What a user calls: maps, executors, pipelines, plans, a backend of joblib, demo and doctor."""
