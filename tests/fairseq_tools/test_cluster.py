"""Runs the line of docs/distributed.md for submitit's launcher on a small training. SLURM's programs are stand-ins."""

import re
import shlex

import pytest

from tests.pages import ROOT, command

pytestmark = pytest.mark.slow

# sbatch copies the batch file, which submitit then moves away, and runs the copy; srun runs the command behind its
# options, as the one task of job 7.
SBATCH = '#!/bin/sh\nfor file; do :; done\ncp "$file" batch.sh\nsh batch.sh >log 2>&1 &\necho Submitted batch job 7\n'
SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do case $1 in --output | --error) shift ;; esac; shift; done
SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=localhost SLURM_NTASKS=1 SLURM_NODEID=0 SLURM_PROCID=0 \\
    SLURM_LOCALID=0 exec "$@"
"""
SACCT = "#!/bin/sh\necho 'JobID|State'\necho '7|RUNNING'\n"


def test_documented_line(tools):
    folder = tools.folder / "cluster"
    slurm = folder / "slurm"
    slurm.mkdir(parents=True)
    for name in ("examples", "fwp_fairseq"):
        (folder / name).symlink_to(ROOT / name)
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", SACCT)):
        (slurm / name).write_text(text)
        (slurm / name).chmod(0o755)
    words = shlex.split(command("docs/distributed.md", "fairseq-hydra-train -m"))
    path = f"PATH={slurm}:{tools.forked.bin}:/usr/bin:/bin"
    small = [f"task.data={tools.folder}/bin", "optimization.max_update=2"]
    tools.command("/usr/bin/env", "-C", folder, path, *words, *small).ok()

    batch = (folder / "batch.sh").read_text(encoding="utf-8")
    resources = ("partition=NAME", "gpus-per-node=8", "ntasks-per-node=1", "cpus-per-task=32", "mem=128GB", "time=5760")
    for wanted in resources:
        assert f"#SBATCH --{wanted}\n" in batch
    assert re.search(rf"srun .*{re.escape(str(tools.forked.program))} ", batch)
    (checkpoint,) = folder.glob("**/checkpoint_last.pt")
    assert tools.load(str(checkpoint.relative_to(tools.folder)))["optimizer_history"][-1]["num_updates"] == 2
