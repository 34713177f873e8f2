"""`podzero push`: an agent on the Hugging Face hub, with a model card from what its run has measured."""

from __future__ import annotations

from typing import Any

from podzero.core.errors import ConfigError
from podzero.files.hub import import_hub, repository
from podzero.files.players import trained_player
from podzero.files.workdir import step_folder
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


def push(who: str, to: str, private: bool = False) -> dict[str, Any]:
    """Uploads a snapshot, with its experiment, own code and metrics, to the repository `to` (`hf:USER/NAME`).

    The repository is made if it does not exist. Returns the agent's name, `pushed`, its `address`, and the `files`.
    """
    repo, revision = repository(to)
    found = agent_info(who)
    player = trained_player("push", who).at_newest()
    assert player.step is not None
    workdir = player.workdir
    folders = (step_folder(workdir.snapshots, player.step), workdir.code)
    files = [workdir.experiment_file, workdir.metrics_file, workdir.hardware_file]
    files += [file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix != ".pyc"]
    names = {str(file.relative_to(workdir.root)): file for file in files if file.is_file()}
    told = found | {"who": to}
    rows = "\n".join(f"| {label} | {text.replace('|', '/')} |" for label, text in agent_rows(told))
    card = _CARD.format(name=to, game=found["game"], rows=rows)
    hub = import_hub(to)
    try:
        api = hub.HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        operations = [hub.CommitOperationAdd(name, str(file)) for name, file in names.items()]
        operations.append(hub.CommitOperationAdd("README.md", card.encode()))
        done = api.create_commit(repo, operations, commit_message=f"step {player.step}", revision=revision)
    # Its errors, those of the network among them, have no common base class.
    except Exception as error:
        raise ConfigError(f"'{to}' cannot be uploaded: {error}; is there a network, and may HF_TOKEN write?") from None
    return {"pushed": to, "address": str(done.repo_url), "files": sorted([*names, "README.md"])}
