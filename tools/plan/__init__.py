"""What an experiment would do on given machines, before anything is rented: speed, traffic, memory, price."""
