"""Accelerators, hosts and links as values, and the cluster names of interface §5.

``8xH100-SXM-80GB``, ``64x8xH100-SXM-80GB``, ``p5.48xlargex4``, ``FILE.toml``, ``this``. The data sheets
are the TOML files of ``catalog/``; each figure has its source and date there. What a machine really is,
is probed elsewhere (``launch/machine.py``) and handed in as a :class:`Cluster`; what it reaches is
measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.counted import counts, shown

if TYPE_CHECKING:
    from paceline.job.tables.cluster import ClusterTable
    from paceline.plan.fabric import Fabric
    from paceline.plan.own import Own
    from paceline.plan.rates import Rate

GB, TERA = 1e9, 1e12
VISIBLE_BYTES = 0.99 * 2**30
"""Of a "GB" of device memory on a data sheet: an 80 GB device shows 79 GiB, a 141 GB one 140."""
LARGEST_HOST = 16
"""Devices of the largest host; a link that joins more leaves the host."""
REPAIRS = 4
NEAR_SHAPE = 0.75
"""Of :mod:`difflib`: ``p5.48xlarg`` means a shape, ``H100`` does not."""
CATALOG = Path(__file__).parent / "catalog"


@dataclass(frozen=True)
class Accelerator:
    """One device by its data sheet. Rates are one direction, for one device; 0 = the source does not say.

    For a CPU one *core* is the device, and the memory bandwidth is shared by the cores of a host.
    ``domain``: devices that the link joins, of a whole rack or slice where it leaves the host.
    """

    name: str
    vendor: str = ""
    peak_flops: Mapping[str, float] = field(default_factory=dict)
    matmul_flops: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    memory_bytes_per_s: float = 0.0
    link: str = ""
    link_bytes_per_s: float = 0.0
    domain: int = 0
    nic_bytes_per_s: float = 0.0
    tdp_w: float = 0.0
    usd_per_hour: float | None = None
    price_date: str = ""
    price_provider: str = ""
    source: str = ""

    @property
    def is_cpu(self) -> bool:
        return self.name == "CPU"


@dataclass(frozen=True)
class Cluster:
    """Hosts of equal devices and the links between them.

    Attributes:
        devices: per host. On a CPU its cores: a hint, since there as many processes run as are asked for.
        memory_bytes: of one device; of the whole host on a CPU, where the ranks share it.
        latency_inter_s: of one message between hosts.
        usd_per_device_hour: of a rented one; None = not stated, and then no cost is shown.
        rate: of a cloud's shape, which is paid whole: ``rented_devices`` a host. own: of one's own, not rented.
        fabric: where hosts of a pod reach each other faster than those of two; None = it is the same everywhere.
        device_mtbf_s: mean time between failures of one device; None = not stated.
        visible: the devices are those of this machine.
        measured: the ``[measured]`` table of a cluster file, as ``cluster measure`` wrote it.
    """

    name: str
    hosts: int
    devices: int
    accelerator: Accelerator
    memory_bytes: int
    link_bytes_per_s: float
    nic_bytes_per_s: float
    latency_inter_s: float = 25e-6
    usd_per_device_hour: float | None = None
    price_date: str = ""
    visible: bool = False
    cpu_model: str = ""
    measured: Mapping[str, Any] | None = None
    rate: Rate | None = None
    rented_devices: int = 0
    own: Own | None = None
    fabric: Fabric | None = None
    device_mtbf_s: float | None = None

    @property
    def is_cpu(self) -> bool:
        return self.accelerator.is_cpu

    @property
    def world(self) -> int:
        """All devices."""
        return self.hosts * self.devices

    @property
    def near(self) -> int:
        """Devices that reach each other by the link alone: of a host, or of the racks and slices that it joins."""
        domain = self.accelerator.domain
        return min(self.world, domain) if domain > max(LARGEST_HOST, self.devices) else self.devices

    def memory_of_rank(self, ranks_on_host: int) -> int:
        """Bytes that one rank may use: its device's, or its share of the host's on a CPU."""
        return self.memory_bytes // max(1, ranks_on_host) if self.is_cpu else self.memory_bytes

    def ranks_on_host(self, world_size: int) -> int:
        """Ranks of the fullest host when hosts are filled one after another."""
        return min(world_size, self.devices) if self.hosts > 1 or not self.is_cpu else world_size

    def scope(self, world_size: int) -> str:
        """``device``, ``host`` or ``cluster``: where that many ranks live."""
        if world_size == 1:
            return "device"
        return "host" if self.hosts == 1 or world_size <= self.devices else "cluster"


@cache
def catalogue() -> dict[str, Accelerator]:
    """Every accelerator of the packaged data sheets, by name."""
    found = {}
    for path in sorted(CATALOG.glob("*.toml")):
        if path.stem != "shapes":
            found.update(_sheet(path))
    return found


def _sheet(path: Path) -> dict[str, Accelerator]:
    import tomllib

    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: _accelerator(name, data["vendor"], row) for name, row in data.items() if isinstance(row, dict)
    }


def _accelerator(name: str, vendor: str, row: Mapping[str, Any]) -> Accelerator:
    price = row.get("price", {})
    return Accelerator(
        name=name,
        vendor=vendor,
        peak_flops={k: v * TERA for k, v in row.get("peak_tflops", {}).items()},
        matmul_flops={k: v * TERA for k, v in row.get("measured_matmul_tflops", {}).items()},
        memory_bytes=int(row.get("memory_gb", 0) * VISIBLE_BYTES),
        memory_bytes_per_s=row.get("memory_tb_per_s", 0) * TERA,
        link=row.get("link", ""),
        link_bytes_per_s=row.get("link_gb_per_s", 0) * GB,
        domain=row.get("scale_up_domain", 0),
        nic_bytes_per_s=row.get("nic_gbit_per_s", 0) * GB / 8,
        tdp_w=float(row.get("tdp_w", 0)),
        usd_per_hour=price.get("usd_per_hour"),
        price_date=price.get("date", ""),
        price_provider=price.get("provider", ""),
        source=row.get("source", ""),
    )


@cache
def shapes() -> dict[str, str]:
    """Machine shapes of clouds: name → ``DEVICESxACCELERATOR``."""
    import tomllib

    return dict(tomllib.loads((CATALOG / "shapes.toml").read_text(encoding="utf-8"))["shapes"])


def this_cpu(cores: int, memory_bytes: int, cpu_model: str = "") -> Cluster:
    """This machine's CPU as a cluster of one host whose devices are its cores."""
    cpu = _sheet(CATALOG / "cpu.toml")["CPU"]
    return Cluster(
        name="this",
        hosts=1,
        devices=max(1, cores),
        accelerator=cpu,
        memory_bytes=memory_bytes,
        link_bytes_per_s=cpu.link_bytes_per_s,
        nic_bytes_per_s=0.0,
        visible=True,
        cpu_model=cpu_model,
    )


def of_accelerator(name: str, hosts: int, devices: int, accelerator: Accelerator) -> Cluster:
    """A cluster whose figures are the data sheet's."""
    return Cluster(
        name=name,
        hosts=hosts,
        devices=devices,
        accelerator=accelerator,
        memory_bytes=accelerator.memory_bytes * (devices if accelerator.is_cpu else 1),
        link_bytes_per_s=accelerator.link_bytes_per_s,
        nic_bytes_per_s=accelerator.nic_bytes_per_s,
        usd_per_device_hour=accelerator.usd_per_hour,
        price_date=accelerator.price_date,
    )


def parse_cluster(text: str, *, this: Cluster | None = None, where: str = "") -> Cluster:
    """A cluster by name.

    Args:
        text: a name of interface §5.
        this: what ``this`` means here, probed by the caller.
        where: where the name was written, repeated in an error.

    Raises:
        Refused: exit 2 for a name that is not understood, with the nearest that is; exit 13 for ``this`` unprobed.
    """
    try:
        return _parsed(text, this, where)
    except Refused as refused:
        refused.use = _understood(refused.use, this)
        raise


def _understood(use: str, this: Cluster | None) -> str:
    """A repair that is no name itself is repaired in turn: a name may be wrong in two places (``0xH100``)."""
    flag, _, name = use.partition(" ")
    if flag != "--cluster" or name == "this" or is_file(name):
        return use
    for _ in range(REPAIRS):
        try:
            _parsed(name, this, "")
            return f"--cluster {name}"
        except Refused as again:
            name = again.use.removeprefix("--cluster ")
    return "--cluster 8xH100-SXM-80GB"


def is_file(name: str) -> bool:
    """Whether a cluster's name is that of a file, in whatever case its suffix is written."""
    return name.strip().lower().endswith(".toml")


def _parsed(text: str, this: Cluster | None, where: str) -> Cluster:
    name = text.strip()
    if name == "this":
        if this is None:
            rule = "`this` is the visible devices"
            _refuse("this machine was not probed", name, rule, "1xCPU", where, Exit.CLUSTER)
        return this
    if is_file(name):
        return _from_file(Path(name), this, where)
    found = _of_shape(name, where)
    if found is not None:
        return found
    parts = re.fullmatch(r"(?:([0-9]+)x)?([0-9]+)x(.+)", name)
    if parts is None:
        sheet = _find(name, f"8x{name}", where)
        rule = "a cluster is [HOSTS x] DEVICES x ACCELERATOR, a machine shape, `this` or FILE.toml"
        _refuse(f"{name} does not say how many", name, rule, f"8x{sheet.name}", where)

    def with_counts(hosts: int, devices: int) -> str:
        return f"{hosts}x{devices}x{parts[3]}" if hosts > 1 else f"{devices}x{parts[3]}"

    hosts, devices = counts(name, parts[1] or "1", parts[2], with_counts, where)
    if re.search(r"[+,]", parts[3]):
        first = re.split(r"[+,]", name)[0]
        rule = "a cluster has one kind of device: the slowest would set the pace of all; plan the kinds apart"
        _refuse(f"{name} mixes devices", name, rule, first, where)
    sheet = _find(parts[3], name, where)
    return of_accelerator(name.replace(parts[3], sheet.name), hosts, devices, sheet)


def _of_shape(name: str, where: str) -> Cluster | None:
    """A machine shape and its hosts, ``p5.48xlargex4``; None where the name is none."""
    by_shape = {shape.lower(): shape for shape in shapes()}
    low = name.lower()
    if low in by_shape:
        return _of(name, 1, by_shape[low], where)
    shape, _, count = low.rpartition("x")
    if shape in by_shape and re.fullmatch("[0-9]+", count):
        plain = by_shape[shape]
        hosts, _ = counts(
            name, count, "1", lambda hosts, _: f"{plain}x{hosts}" if hosts > 1 else plain, where
        )
        return _of(name, hosts, plain, where)
    before, _, shape = low.partition("x")
    if shape in by_shape and re.fullmatch("[0-9]+", before):
        rule = "the hosts of a machine shape stand behind it: SHAPExHOSTS"
        use = f"{by_shape[shape]}x{before}"
        _refuse(f"{shown(name)} counts hosts before the shape", shown(name), rule, use, where)
    import difflib

    near = difflib.get_close_matches(low, by_shape, n=1, cutoff=NEAR_SHAPE)
    if near and not re.match("[0-9]+x", low):
        rule = "the machine shape is one of the catalogue (`paceline cluster list`)"
        _refuse(f"{shown(name)} is not in the catalogue", shown(name), rule, by_shape[near[0]], where)
    return None


def _of(name: str, hosts: int, shape: str, where: str) -> Cluster:
    """Hosts of a shape; where a cloud's table has it, at its price and with its network."""
    devices, _, accelerator = shapes()[shape].partition("x")
    cluster = of_accelerator(name, hosts, int(devices), _find(accelerator, name, where))
    # Why late: prices of clouds are read for a cloud's machine only; a plan for this one is made in half a second.
    from paceline.plan.rates import rates

    rate = rates().get(shape)
    if rate is None:
        return cluster
    return replace(
        cluster,
        rate=rate,
        rented_devices=cluster.devices,
        usd_per_device_hour=rate.usd_per_hour / cluster.devices,
        price_date=rate.date,
        nic_bytes_per_s=rate.nic_bytes_per_s,
    )


def _find(text: str, whole: str, where: str) -> Accelerator:
    wanted = text.strip().replace(" ", "-").lower()
    names = {name.lower(): name for name in catalogue()}
    if wanted in names:
        return catalogue()[names[wanted]]
    fits = [name for low, name in sorted(names.items()) if low.startswith(wanted)] if wanted else []
    if len(fits) == 1:
        return catalogue()[fits[0]]
    if fits:
        rule = f"{text} fits several: write one of them in full"
        _refuse(
            f"{text} is not one accelerator",
            whole,
            rule,
            _put(whole, text, fits),
            where,
            allowed=", ".join(fits),
        )
    import difflib

    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.3) or ["h100-sxm-80gb"]
    rule = "the accelerator is one of the catalogue (`paceline cluster list`)"
    _refuse(f"{text} is not in the catalogue", whole, rule, _put(whole, text, [names[near[0]]]), where)


def _put(whole: str, text: str, names: list[str]) -> str:
    sxm = [name for name in names if "SXM" in name]
    return whole.replace(text, (sxm or names)[-1])


def _from_file(path: Path, this: Cluster | None, where: str) -> Cluster:
    import tomllib

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        _refuse(f"{path} cannot be read", path, error.strerror or str(error), "this", where)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        _refuse(f"{path} is not a cluster file", path, str(error), "this", where)
    table = data.get("cluster", {})
    unknown = [key for key in data if key not in ("cluster", "measured", "own", "fabric", "schema")]
    if unknown or not isinstance(table, dict):
        rule = "a cluster file holds the keys of [cluster] and the tables [measured], [own] and [fabric]"
        _refuse(
            f"{unknown[0] if unknown else 'cluster'} is no table of {path.name}", path, rule, "this", where
        )
    if not table:
        raise Refused(
            f"{path.name} says nothing of a cluster",
            exit_code=Exit.USAGE,
            key="cluster.use",
            seen="no key of [cluster]",
            rule="its [cluster] says use (a name of the catalogue, a shape, `this`) or what is not as on this machine",
            use='[cluster]\nuse = "8xH100-SXM-80GB"',
            where=str(path),
        )
    keys = _keys_of(table, path)
    if is_file(keys.use):
        rule = "a cluster file stands on a name of the catalogue, a machine shape, or `this`"
        _refuse(f"{path.name} stands on another file", keys.use, rule, keys.use, str(path))
    base = parse_cluster(keys.use, this=this, where=str(path))
    named = replace(base, name=path.stem, measured=data.get("measured"))
    found = _owned(with_keys(named, keys, str(path)), data, path)
    if "fabric" not in data:
        return found
    # Why late: few clusters have one, and plan/fabric.py needs what is priced with it.
    from paceline.plan.fabric import fabric_of

    return replace(found, fabric=fabric_of(data["fabric"], str(path)))


def _keys_of(table: Mapping[str, Any], path: Path) -> ClusterTable:
    """A file's ``[cluster]`` table, held to what a job file's is held to."""
    # Why late: the job's package costs a tenth of a second, and a catalogue name needs none of it.
    from paceline.job import Job
    from paceline.job.layers import Layer, Merged, checked
    from paceline.job.schema import flatten

    merged = Merged()
    merged.lay(checked(Layer(str(path), dict(flatten({"cluster": table})))))
    return Job.of(merged).cluster


def _owned(cluster: Cluster, data: Mapping[str, Any], path: Path) -> Cluster:
    """With what the file says of one's own cluster, which is then not rented."""
    if "own" not in data:
        return cluster
    if not isinstance(data["own"], dict):
        _refuse("own is no table", path, "[own] holds what one's own cluster costs", "", str(path))
    if data.get("cluster", {}).get("usd_per_device_hour") is not None:
        rule = "a cluster is rented by the device-hour or one's own: one of the two"
        _refuse(f"{path.name} is rented and owned", path, rule, "", str(path))
    from paceline.plan.own import own_of

    own = own_of(data["own"], str(path))
    return replace(cluster, own=own, rate=None, rented_devices=0, usd_per_device_hour=None, price_date="")


def with_keys(cluster: Cluster, table: ClusterTable, where: str = "") -> Cluster:
    """The cluster with the keys of a ``[cluster]`` table over what ``use`` says."""
    if table.accelerator:
        sheet = _find(table.accelerator, table.accelerator, where)
        cluster = of_accelerator(cluster.name, cluster.hosts, cluster.devices, sheet)
    found = {
        "hosts": table.hosts,
        "devices": table.devices,
        "memory_bytes": table.memory,
        "link_bytes_per_s": table.link.intra,
        "nic_bytes_per_s": table.link.inter,
        "latency_inter_s": table.latency.inter,
        "usd_per_device_hour": table.usd_per_device_hour,
        "device_mtbf_s": table.device_mtbf,
    }
    changes: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if "usd_per_device_hour" in changes:
        changes["price_date"] = ""
    changed = replace(cluster, **changes)
    return _not_here(changed, where) if cluster.visible and changed.hosts > 1 else changed


def _not_here(cluster: Cluster, where: str) -> Cluster:
    """Several hosts of this machine's kind: more than is here, and joined by a link that no probe of one host sees."""
    if cluster.nic_bytes_per_s:
        return replace(cluster, visible=False)
    raise Refused(
        f"{cluster.hosts} hosts of this machine's kind need the link between them",
        exit_code=Exit.USAGE,
        key="cluster.link.inter",
        seen=f"cluster.hosts = {cluster.hosts}, no cluster.link.inter",
        rule="`this` is one host; of several like it nobody knows how fast they reach each other but you",
        use='cluster.link.inter = "10Gbit"',
        where=where,
    )


def _refuse(
    message: str,
    seen: object,
    rule: str,
    use: str,
    where: str,
    exit_code: Exit = Exit.USAGE,
    allowed: str = "",
) -> NoReturn:
    raise Refused(
        message,
        exit_code=exit_code,
        key="cluster.use",
        seen=seen,
        rule=rule,
        allowed=allowed,
        use=f"--cluster {use}" if use else "",
        where=where,
    )
