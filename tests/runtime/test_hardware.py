"""The machines of a run, recorded for its report."""

import json

from podzero.runtime.cluster.placement import Node
from podzero.runtime.hardware import processor, record_hardware
from podzero.workdir import Workdir


def test_the_nodes_with_their_accelerators_are_recorded(tmp_path):
    label = {"ray.io/accelerator-type": "TPU-V5E"}
    nodes = [
        Node("a", "10.0.0.1", 8.0, {"CPU": 8.0, "TPU": 4.0, "memory": 16 * 2.0**30}, label),
        Node("b", "10.0.0.2", 4.0, {"CPU": 4.0, "GPU": 0.0}, {}),
    ]
    record_hardware(Workdir(tmp_path), nodes)
    tree = json.loads(Workdir(tmp_path).hardware_file.read_text())
    assert tree["nodes"] == [
        {"host": "10.0.0.1", "cpus": 8.0, "memory_gib": 16.0, "accelerators": {"TPU-V5E": 4}},
        {"host": "10.0.0.2", "cpus": 4.0, "memory_gib": 0.0, "accelerators": {}},
    ]
    assert tree["driver"].keys() == {"processor", "podzero", "Python", "JAX"}


def test_a_processor_has_its_own_name_or_that_of_its_architecture(tmp_path):
    file = tmp_path / "cpuinfo"
    assert processor(file)
    file.write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nprocessor\t: 1\nmodel name\t: Other\n")
    assert processor(file) == "Fast CPU @ 3 GHz"
