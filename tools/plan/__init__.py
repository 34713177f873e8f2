"""What an experiment would do on given machines, before anything is rented: rates, bottleneck, traffic, memory, price.

`rates` finds out how fast each part is by itself, `simulation` what they do together, `cli` is `podzero plan`.
"""
