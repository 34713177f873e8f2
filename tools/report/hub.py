"""`podzero push`: an agent on the Hugging Face hub, with a model card from what its run has measured."""

from __future__ import annotations

from typing import Any

import yaml

from podzero.config import read_tree
from podzero.core.errors import ConfigError
from podzero.core.importing import import_extra
from podzero.files.players import hub_repository, trained_player
from podzero.files.workdir import step_folder
from podzero.learner.sharding import named_leaves
from podzero.networks.snapshots import load_snapshot
from podzero.tools.report.info import agent_info, agent_rows

_CARD = """---
library_name: podzero
tags: [reinforcement-learning, podzero, "{game}"]
---
# {name}

An agent that podzero has trained: `podzero play {name} --web`, `podzero evaluate {name}`.

| | |
|---|---|
{rows}
"""


WEIGHTS = "model.safetensors"
"""The file of parameters that programs other than podzero read."""


def push(who: str, to: str, private: bool = False) -> dict[str, Any]:
    """Uploads a snapshot, with its experiment, own code and metrics, to the repository `to` (`hf:USER/NAME`).

    The repository is made if it is missing; its snapshot and code are replaced. For other programs `WEIGHTS` has the
    parameters by their paths, such as `heads.value.kernel`. Returns `pushed`, `address`, `files`.
    """
    repo, revision = hub_repository(to)
    found = agent_info(who)
    player = trained_player("push", who).at_newest()
    assert player.step is not None
    workdir = player.workdir
    folders = (step_folder(workdir.snapshots, player.step), workdir.code)
    files = [workdir.metrics_file, workdir.hardware_file]
    files += [file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix != ".pyc"]
    contents: dict[str, str | bytes] = {
        str(file.relative_to(workdir.root)): str(file) for file in files if file.is_file()
    }
    tree = read_tree(workdir.experiment_file)
    tree.get("metrics", {}).pop("alert", None)  # the address of a webhook is a secret
    contents[workdir.experiment_file.name] = yaml.safe_dump(tree, sort_keys=False).encode()
    rows = "\n".join(f"| {label} | {text.replace('|', '/')} |" for label, text in agent_rows(found | {"who": to}))
    contents["README.md"] = _CARD.format(name=to, game=found["game"], rows=rows).encode()
    hub, safetensors = (import_extra(name, f"'{to}'", "hub") for name in ("huggingface_hub", "safetensors.numpy"))
    contents[WEIGHTS] = safetensors.save(named_leaves(load_snapshot(workdir.snapshots, player.step).params))
    try:
        api = hub.HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        operations = [hub.CommitOperationAdd(name, content) for name, content in contents.items()]
        held = api.list_repo_files(repo, revision=revision)
        replaced = [name for name in held if name.startswith(("snapshots/", "code/")) and name not in contents]
        operations += map(hub.CommitOperationDelete, replaced)
        done = api.create_commit(repo, operations, commit_message=f"step {player.step}", revision=revision)
    # Its errors, those of the network among them, have no common base class.
    except Exception as error:
        raise ConfigError(f"'{to}' cannot be uploaded: {error}; is there a network, and may HF_TOKEN write?") from None
    return {"pushed": to, "address": str(done.repo_url), "files": sorted(contents)}
