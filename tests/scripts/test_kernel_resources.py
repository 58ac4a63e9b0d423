"""What kernel_resources.py reads in an assembler's report."""

from scripts import kernel_resources

REPORT = """\
ptxas info    : Compiling entry function '_ZN3fwp3gpu11walk_kernelENS0_4CallE' for 'sm_80'
ptxas info    : Function properties for _ZN3fwp3gpu11walk_kernelENS0_4CallE
    8 bytes stack frame, 40 bytes spill stores, 36 bytes spill loads
ptxas info    : Used 120 registers, used 1 barriers, 928 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN3fwp3gpu11keys_kernelENS0_4CallE' for 'sm_80'
ptxas info    : Function properties for _ZN3fwp3gpu11keys_kernelENS0_4CallE
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 99 registers, used 1 barriers
"""


def test_report_of_the_assembler():
    assert kernel_resources.kernels_of(REPORT) == [("walk_kernel", 120, 76), ("keys_kernel", 99, 0)]
