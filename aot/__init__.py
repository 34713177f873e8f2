"""What the TPU compiler says of an experiment before any TPU is rented."""
