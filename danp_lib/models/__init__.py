"""The neural processes: ConvCNP, ConvGNP and DANP."""
