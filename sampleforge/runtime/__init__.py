"""The operating system and the machine: processes, signals, threads, devices, torchrun."""
