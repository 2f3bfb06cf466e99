from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_ANY: _ClassVar[Tier]
    TIER_GPU: _ClassVar[Tier]
    TIER_CPU: _ClassVar[Tier]
    TIER_DISK: _ClassVar[Tier]

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_SEALED: _ClassVar[EventKind]
    EVENT_MOVED: _ClassVar[EventKind]
    EVENT_EVICTED: _ClassVar[EventKind]
    EVENT_REMOVED: _ClassVar[EventKind]
    EVENT_CLEARED: _ClassVar[EventKind]
    EVENT_EPOCH: _ClassVar[EventKind]
    EVENT_GAP: _ClassVar[EventKind]
TIER_ANY: Tier
TIER_GPU: Tier
TIER_CPU: Tier
TIER_DISK: Tier
EVENT_UNSPECIFIED: EventKind
EVENT_SEALED: EventKind
EVENT_MOVED: EventKind
EVENT_EVICTED: EventKind
EVENT_REMOVED: EventKind
EVENT_CLEARED: EventKind
EVENT_EPOCH: EventKind
EVENT_GAP: EventKind

class Layout(_message.Message):
    __slots__ = ("layers", "kv_heads", "head_dim", "dtype", "block_tokens", "order", "opaque_bytes", "tag")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    OPAQUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    block_tokens: int
    order: str
    opaque_bytes: int
    tag: str
    def __init__(self, layers: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., dtype: _Optional[str] = ..., block_tokens: _Optional[int] = ..., order: _Optional[str] = ..., opaque_bytes: _Optional[int] = ..., tag: _Optional[str] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ("model", "revision", "config_digest", "adapter", "salt", "rank", "world", "key_bytes", "layout")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: str
    config_digest: str
    adapter: str
    salt: str
    rank: int
    world: int
    key_bytes: int
    layout: Layout
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[str] = ..., config_digest: _Optional[str] = ..., adapter: _Optional[str] = ..., salt: _Optional[str] = ..., rank: _Optional[int] = ..., world: _Optional[int] = ..., key_bytes: _Optional[int] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("space", "fingerprint", "block_bytes", "pid", "client_version", "detach", "unmapped")
    SPACE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    UNMAPPED_FIELD_NUMBER: _ClassVar[int]
    space: Namespace
    fingerprint: bytes
    block_bytes: int
    pid: int
    client_version: str
    detach: bool
    unmapped: _containers.RepeatedCompositeFieldContainer[Former]
    def __init__(self, space: _Optional[_Union[Namespace, _Mapping]] = ..., fingerprint: _Optional[bytes] = ..., block_bytes: _Optional[int] = ..., pid: _Optional[int] = ..., client_version: _Optional[str] = ..., detach: bool = ..., unmapped: _Optional[_Iterable[_Union[Former, _Mapping]]] = ...) -> None: ...

class Former(_message.Message):
    __slots__ = ("epoch", "session")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    session: int
    def __init__(self, epoch: _Optional[int] = ..., session: _Optional[int] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("index", "tier", "device", "kind", "capacity_bytes", "extent_bytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXTENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    tier: Tier
    device: int
    kind: str
    capacity_bytes: int
    extent_bytes: int
    def __init__(self, index: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., device: _Optional[int] = ..., kind: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., extent_bytes: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("keys_per_call_count", "message_bytes", "part_bytes", "lease_s", "reservation_s", "grace_s")
    KEYS_PER_CALL_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_S_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    keys_per_call_count: int
    message_bytes: int
    part_bytes: int
    lease_s: float
    reservation_s: float
    grace_s: float
    def __init__(self, keys_per_call_count: _Optional[int] = ..., message_bytes: _Optional[int] = ..., part_bytes: _Optional[int] = ..., lease_s: _Optional[float] = ..., reservation_s: _Optional[float] = ..., grace_s: _Optional[float] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("epoch", "session", "token", "fingerprint", "block_bytes", "key_bytes", "pools", "limits", "side_socket", "server_version", "draining")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SIDE_SOCKET_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    session: int
    token: bytes
    fingerprint: bytes
    block_bytes: int
    key_bytes: int
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    limits: Limits
    side_socket: str
    server_version: str
    draining: bool
    def __init__(self, epoch: _Optional[int] = ..., session: _Optional[int] = ..., token: _Optional[bytes] = ..., fingerprint: _Optional[bytes] = ..., block_bytes: _Optional[int] = ..., key_bytes: _Optional[int] = ..., pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., side_socket: _Optional[str] = ..., server_version: _Optional[str] = ..., draining: bool = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("session", "keys", "key_bytes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: bytes
    key_bytes: int
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ...) -> None: ...

class LookupReply(_message.Message):
    __slots__ = ("epoch", "states", "tiers")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    states: bytes
    tiers: bytes
    def __init__(self, epoch: _Optional[int] = ..., states: _Optional[bytes] = ..., tiers: _Optional[bytes] = ...) -> None: ...

class Hints(_message.Message):
    __slots__ = ("priority", "expected_next_use_s", "request_class", "end_of_session")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_NEXT_USE_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    END_OF_SESSION_FIELD_NUMBER: _ClassVar[int]
    priority: int
    expected_next_use_s: float
    request_class: int
    end_of_session: bool
    def __init__(self, priority: _Optional[int] = ..., expected_next_use_s: _Optional[float] = ..., request_class: _Optional[int] = ..., end_of_session: bool = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("session", "keys", "key_bytes", "tier", "device", "wait_s", "views", "independent", "request_id", "lease", "recompute_s", "hints")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    INDEPENDENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: bytes
    key_bytes: int
    tier: Tier
    device: int
    wait_s: float
    views: bool
    independent: bool
    request_id: int
    lease: int
    recompute_s: float
    hints: Hints
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., device: _Optional[int] = ..., wait_s: _Optional[float] = ..., views: bool = ..., independent: bool = ..., request_id: _Optional[int] = ..., lease: _Optional[int] = ..., recompute_s: _Optional[float] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

class AcquireReply(_message.Message):
    __slots__ = ("epoch", "lease", "states", "slots", "expires_in_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    lease: int
    states: bytes
    slots: bytes
    expires_in_s: float
    def __init__(self, epoch: _Optional[int] = ..., lease: _Optional[int] = ..., states: _Optional[bytes] = ..., slots: _Optional[bytes] = ..., expires_in_s: _Optional[float] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("session", "holds", "requests")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    holds: _containers.RepeatedScalarFieldContainer[int]
    requests: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[int] = ..., holds: _Optional[_Iterable[int]] = ..., requests: _Optional[_Iterable[int]] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("epoch", "alive", "expires_in_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    alive: _containers.RepeatedScalarFieldContainer[bool]
    expires_in_s: float
    def __init__(self, epoch: _Optional[int] = ..., alive: _Optional[_Iterable[bool]] = ..., expires_in_s: _Optional[float] = ...) -> None: ...

class DeviceEvent(_message.Message):
    __slots__ = ("pool", "event")
    POOL_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    pool: int
    event: bytes
    def __init__(self, pool: _Optional[int] = ..., event: _Optional[bytes] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("session", "lease", "events")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    lease: int
    events: _containers.RepeatedCompositeFieldContainer[DeviceEvent]
    def __init__(self, session: _Optional[int] = ..., lease: _Optional[int] = ..., events: _Optional[_Iterable[_Union[DeviceEvent, _Mapping]]] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("session", "keys", "key_bytes", "parent", "tier", "device", "wait_s", "request_id", "hints")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: bytes
    key_bytes: int
    parent: bytes
    tier: Tier
    device: int
    wait_s: float
    request_id: int
    hints: Hints
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., parent: _Optional[bytes] = ..., tier: _Optional[_Union[Tier, str]] = ..., device: _Optional[int] = ..., wait_s: _Optional[float] = ..., request_id: _Optional[int] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

class ReserveReply(_message.Message):
    __slots__ = ("epoch", "reservation", "outcomes", "slots", "expires_in_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    reservation: int
    outcomes: bytes
    slots: bytes
    expires_in_s: float
    def __init__(self, epoch: _Optional[int] = ..., reservation: _Optional[int] = ..., outcomes: _Optional[bytes] = ..., slots: _Optional[bytes] = ..., expires_in_s: _Optional[float] = ...) -> None: ...

class SealRequest(_message.Message):
    __slots__ = ("session", "reservation", "indices", "checksums", "events")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    reservation: int
    indices: bytes
    checksums: bytes
    events: _containers.RepeatedCompositeFieldContainer[DeviceEvent]
    def __init__(self, session: _Optional[int] = ..., reservation: _Optional[int] = ..., indices: _Optional[bytes] = ..., checksums: _Optional[bytes] = ..., events: _Optional[_Iterable[_Union[DeviceEvent, _Mapping]]] = ...) -> None: ...

class SealReply(_message.Message):
    __slots__ = ("epoch", "outcomes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    outcomes: bytes
    def __init__(self, epoch: _Optional[int] = ..., outcomes: _Optional[bytes] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("session", "reservation", "indices", "events")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    reservation: int
    indices: bytes
    events: _containers.RepeatedCompositeFieldContainer[DeviceEvent]
    def __init__(self, session: _Optional[int] = ..., reservation: _Optional[int] = ..., indices: _Optional[bytes] = ..., events: _Optional[_Iterable[_Union[DeviceEvent, _Mapping]]] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class PrefetchRequest(_message.Message):
    __slots__ = ("session", "keys", "key_bytes", "tier", "device", "deadline_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: bytes
    key_bytes: int
    tier: Tier
    device: int
    deadline_s: float
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., device: _Optional[int] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class PrefetchReply(_message.Message):
    __slots__ = ("epoch", "started")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    started: int
    def __init__(self, epoch: _Optional[int] = ..., started: _Optional[int] = ...) -> None: ...

class TouchRequest(_message.Message):
    __slots__ = ("session", "keys", "key_bytes", "counts")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: bytes
    key_bytes: int
    counts: bytes
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., counts: _Optional[bytes] = ...) -> None: ...

class TouchReply(_message.Message):
    __slots__ = ("epoch", "touched")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    touched: int
    def __init__(self, epoch: _Optional[int] = ..., touched: _Optional[int] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("session", "keys", "key_bytes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: bytes
    key_bytes: int
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ...) -> None: ...

class RemoveReply(_message.Message):
    __slots__ = ("epoch", "removed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    removed: int
    def __init__(self, epoch: _Optional[int] = ..., removed: _Optional[int] = ...) -> None: ...

class EndRequestRequest(_message.Message):
    __slots__ = ("session", "request_id", "hints")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    request_id: int
    hints: Hints
    def __init__(self, session: _Optional[int] = ..., request_id: _Optional[int] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

class EndRequestReply(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("session", "keys", "key_bytes", "wait_s", "independent", "request_id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    INDEPENDENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: bytes
    key_bytes: int
    wait_s: float
    independent: bool
    request_id: int
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., wait_s: _Optional[float] = ..., independent: bool = ..., request_id: _Optional[int] = ...) -> None: ...

class ReadPart(_message.Message):
    __slots__ = ("epoch", "states", "data")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    states: bytes
    data: bytes
    def __init__(self, epoch: _Optional[int] = ..., states: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class WritePart(_message.Message):
    __slots__ = ("session", "keys", "key_bytes", "parent", "tier", "wait_s", "request_id", "data")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: bytes
    key_bytes: int
    parent: bytes
    tier: Tier
    wait_s: float
    request_id: int
    data: bytes
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., parent: _Optional[bytes] = ..., tier: _Optional[_Union[Tier, str]] = ..., wait_s: _Optional[float] = ..., request_id: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteReply(_message.Message):
    __slots__ = ("epoch", "outcomes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    outcomes: bytes
    def __init__(self, epoch: _Optional[int] = ..., outcomes: _Optional[bytes] = ...) -> None: ...

class NewSequence(_message.Message):
    __slots__ = ("keys", "tokens", "tier", "device", "page_blocks")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PAGE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    tokens: int
    tier: Tier
    device: int
    page_blocks: int
    def __init__(self, keys: _Optional[bytes] = ..., tokens: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., device: _Optional[int] = ..., page_blocks: _Optional[int] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("session", "key_bytes", "sequences")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    session: int
    key_bytes: int
    sequences: _containers.RepeatedCompositeFieldContainer[NewSequence]
    def __init__(self, session: _Optional[int] = ..., key_bytes: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[NewSequence, _Mapping]]] = ...) -> None: ...

class OpenedSequence(_message.Message):
    __slots__ = ("sequence", "cached_blocks", "cached_tokens", "tokens", "page_blocks", "pool", "block_tokens")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    cached_blocks: int
    cached_tokens: int
    tokens: int
    page_blocks: int
    pool: int
    block_tokens: int
    def __init__(self, sequence: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., tokens: _Optional[int] = ..., page_blocks: _Optional[int] = ..., pool: _Optional[int] = ..., block_tokens: _Optional[int] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("epoch", "opened")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    opened: _containers.RepeatedCompositeFieldContainer[OpenedSequence]
    def __init__(self, epoch: _Optional[int] = ..., opened: _Optional[_Iterable[_Union[OpenedSequence, _Mapping]]] = ...) -> None: ...

class AttachBlocksRequest(_message.Message):
    __slots__ = ("session", "sequence", "first_block", "keys", "key_bytes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    first_block: int
    keys: bytes
    key_bytes: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., first_block: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ...) -> None: ...

class AttachBlocksReply(_message.Message):
    __slots__ = ("epoch", "attached")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attached: int
    def __init__(self, epoch: _Optional[int] = ..., attached: _Optional[int] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("session", "sequences", "more_tokens")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MORE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    more_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ..., more_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class ExtendReply(_message.Message):
    __slots__ = ("epoch", "tokens")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("sequence", "blocks", "write")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    blocks: bytes
    write: bool
    def __init__(self, sequence: _Optional[int] = ..., blocks: _Optional[bytes] = ..., write: bool = ...) -> None: ...

class FaultRequest(_message.Message):
    __slots__ = ("session", "wants", "hold", "wait_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WANTS_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: int
    wants: _containers.RepeatedCompositeFieldContainer[Want]
    hold: bool
    wait_s: float
    def __init__(self, session: _Optional[int] = ..., wants: _Optional[_Iterable[_Union[Want, _Mapping]]] = ..., hold: bool = ..., wait_s: _Optional[float] = ...) -> None: ...

class FaultReply(_message.Message):
    __slots__ = ("epoch", "states", "slots", "leases", "expires_in_s", "minor", "major", "page_blocks")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    PAGE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    states: bytes
    slots: bytes
    leases: _containers.RepeatedScalarFieldContainer[int]
    expires_in_s: float
    minor: int
    major: int
    page_blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., states: _Optional[bytes] = ..., slots: _Optional[bytes] = ..., leases: _Optional[_Iterable[int]] = ..., expires_in_s: _Optional[float] = ..., minor: _Optional[int] = ..., major: _Optional[int] = ..., page_blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class TranslateRequest(_message.Message):
    __slots__ = ("session", "sequence", "blocks")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    blocks: bytes
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., blocks: _Optional[bytes] = ...) -> None: ...

class TranslateReply(_message.Message):
    __slots__ = ("epoch", "states", "slots", "page_blocks")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PAGE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    states: bytes
    slots: bytes
    page_blocks: int
    def __init__(self, epoch: _Optional[int] = ..., states: _Optional[bytes] = ..., slots: _Optional[bytes] = ..., page_blocks: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("session", "sequence", "first_block", "keys", "key_bytes", "parent", "checksums", "events", "wait_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    first_block: int
    keys: bytes
    key_bytes: int
    parent: bytes
    checksums: bytes
    events: _containers.RepeatedCompositeFieldContainer[DeviceEvent]
    wait_s: float
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., first_block: _Optional[int] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., parent: _Optional[bytes] = ..., checksums: _Optional[bytes] = ..., events: _Optional[_Iterable[_Union[DeviceEvent, _Mapping]]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("epoch", "outcomes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    outcomes: bytes
    def __init__(self, epoch: _Optional[int] = ..., outcomes: _Optional[bytes] = ...) -> None: ...

class ForkRequest(_message.Message):
    __slots__ = ("session", "sequence", "count", "events", "wait_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    count: int
    events: _containers.RepeatedCompositeFieldContainer[DeviceEvent]
    wait_s: float
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., count: _Optional[int] = ..., events: _Optional[_Iterable[_Union[DeviceEvent, _Mapping]]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ForkReply(_message.Message):
    __slots__ = ("epoch", "sequences")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class SuspendRequest(_message.Message):
    __slots__ = ("session", "sequences", "events", "wait_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    events: _containers.RepeatedCompositeFieldContainer[DeviceEvent]
    wait_s: float
    def __init__(self, session: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ..., events: _Optional[_Iterable[_Union[DeviceEvent, _Mapping]]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class SuspendReply(_message.Message):
    __slots__ = ("epoch", "left", "stayed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    STAYED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    left: int
    stayed: int
    def __init__(self, epoch: _Optional[int] = ..., left: _Optional[int] = ..., stayed: _Optional[int] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("session", "sequences", "wait_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    wait_s: float
    def __init__(self, session: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ResumeReply(_message.Message):
    __slots__ = ("epoch", "blocks", "lost")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    blocks: int
    lost: int
    def __init__(self, epoch: _Optional[int] = ..., blocks: _Optional[int] = ..., lost: _Optional[int] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("session", "sequences", "events")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    events: _containers.RepeatedCompositeFieldContainer[DeviceEvent]
    def __init__(self, session: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ..., events: _Optional[_Iterable[_Union[DeviceEvent, _Mapping]]] = ...) -> None: ...

class CloseReply(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class AttentionWindow(_message.Message):
    __slots__ = ("window_tokens", "sink_tokens", "ahead_tokens")
    WINDOW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SINK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    window_tokens: int
    sink_tokens: int
    ahead_tokens: int
    def __init__(self, window_tokens: _Optional[int] = ..., sink_tokens: _Optional[int] = ..., ahead_tokens: _Optional[int] = ...) -> None: ...

class AdvanceRequest(_message.Message):
    __slots__ = ("session", "sequence", "position", "window")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    position: int
    window: AttentionWindow
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., position: _Optional[int] = ..., window: _Optional[_Union[AttentionWindow, _Mapping]] = ...) -> None: ...

class AdvanceReply(_message.Message):
    __slots__ = ("epoch", "prefetched", "cancelled", "kept")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    prefetched: int
    cancelled: int
    kept: int
    def __init__(self, epoch: _Optional[int] = ..., prefetched: _Optional[int] = ..., cancelled: _Optional[int] = ..., kept: _Optional[int] = ...) -> None: ...

class AdjustPageSizeRequest(_message.Message):
    __slots__ = ("session", "sequence", "page_blocks", "wait_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    page_blocks: int
    wait_s: float
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., page_blocks: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class AdjustPageSizeReply(_message.Message):
    __slots__ = ("epoch", "page_blocks", "entries_before", "entries_after", "copied_bytes", "split_pages")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAGE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_AFTER_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPLIT_PAGES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    page_blocks: int
    entries_before: int
    entries_after: int
    copied_bytes: int
    split_pages: int
    def __init__(self, epoch: _Optional[int] = ..., page_blocks: _Optional[int] = ..., entries_before: _Optional[int] = ..., entries_after: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., split_pages: _Optional[int] = ...) -> None: ...

class SetStickyRequest(_message.Message):
    __slots__ = ("session", "sequence", "first_block", "count", "sticky")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STICKY_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    first_block: int
    count: int
    sticky: bool
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., first_block: _Optional[int] = ..., count: _Optional[int] = ..., sticky: bool = ...) -> None: ...

class SetStickyReply(_message.Message):
    __slots__ = ("epoch", "sticky_bytes", "limit_bytes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STICKY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sticky_bytes: int
    limit_bytes: int
    def __init__(self, epoch: _Optional[int] = ..., sticky_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class NoteTranslationsRequest(_message.Message):
    __slots__ = ("session", "hits", "misses", "invalidations")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    INVALIDATIONS_FIELD_NUMBER: _ClassVar[int]
    session: int
    hits: int
    misses: int
    invalidations: int
    def __init__(self, session: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., invalidations: _Optional[int] = ...) -> None: ...

class NoteTranslationsReply(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("session", "sequence")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("epoch", "json")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    json: str
    def __init__(self, epoch: _Optional[int] = ..., json: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("fingerprints", "kinds", "from_sequence", "epoch")
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    fingerprints: _containers.RepeatedScalarFieldContainer[bytes]
    kinds: _containers.RepeatedScalarFieldContainer[EventKind]
    from_sequence: int
    epoch: int
    def __init__(self, fingerprints: _Optional[_Iterable[bytes]] = ..., kinds: _Optional[_Iterable[_Union[EventKind, str]]] = ..., from_sequence: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "kind", "fingerprint", "keys", "key_bytes", "count", "source", "target", "reason", "kept", "last")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: EventKind
    fingerprint: bytes
    keys: bytes
    key_bytes: int
    count: int
    source: str
    target: str
    reason: str
    kept: bool
    last: bool
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[_Union[EventKind, str]] = ..., fingerprint: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., count: _Optional[int] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., reason: _Optional[str] = ..., kept: bool = ..., last: bool = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("epoch", "events", "next_sequence")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    next_sequence: int
    def __init__(self, epoch: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., next_sequence: _Optional[int] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("fingerprint",)
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    def __init__(self, fingerprint: _Optional[bytes] = ...) -> None: ...

class SnapshotPart(_message.Message):
    __slots__ = ("epoch", "sequence", "pools", "fingerprint", "key_bytes", "keys", "copies")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    pools: _containers.RepeatedScalarFieldContainer[str]
    fingerprint: bytes
    key_bytes: int
    keys: bytes
    copies: bytes
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., pools: _Optional[_Iterable[str]] = ..., fingerprint: _Optional[bytes] = ..., key_bytes: _Optional[int] = ..., keys: _Optional[bytes] = ..., copies: _Optional[bytes] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("epoch", "json")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    json: str
    def __init__(self, epoch: _Optional[int] = ..., json: _Optional[str] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigValue(_message.Message):
    __slots__ = ("key", "json_value", "source")
    KEY_FIELD_NUMBER: _ClassVar[int]
    JSON_VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    key: str
    json_value: str
    source: str
    def __init__(self, key: _Optional[str] = ..., json_value: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class GetConfigReply(_message.Message):
    __slots__ = ("epoch", "values", "version")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    values: _containers.RepeatedCompositeFieldContainer[ConfigValue]
    version: int
    def __init__(self, epoch: _Optional[int] = ..., values: _Optional[_Iterable[_Union[ConfigValue, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class ConfigAssignment(_message.Message):
    __slots__ = ("key", "json_value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    JSON_VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    json_value: str
    def __init__(self, key: _Optional[str] = ..., json_value: _Optional[str] = ...) -> None: ...

class UpdateConfigRequest(_message.Message):
    __slots__ = ("changes", "expected_version")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[ConfigAssignment]
    expected_version: int
    def __init__(self, changes: _Optional[_Iterable[_Union[ConfigAssignment, _Mapping]]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class ConfigChange(_message.Message):
    __slots__ = ("key", "json_before", "json_after")
    KEY_FIELD_NUMBER: _ClassVar[int]
    JSON_BEFORE_FIELD_NUMBER: _ClassVar[int]
    JSON_AFTER_FIELD_NUMBER: _ClassVar[int]
    key: str
    json_before: str
    json_after: str
    def __init__(self, key: _Optional[str] = ..., json_before: _Optional[str] = ..., json_after: _Optional[str] = ...) -> None: ...

class UpdateConfigReply(_message.Message):
    __slots__ = ("epoch", "version", "previous_version", "changed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    previous_version: int
    changed: _containers.RepeatedCompositeFieldContainer[ConfigChange]
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., previous_version: _Optional[int] = ..., changed: _Optional[_Iterable[_Union[ConfigChange, _Mapping]]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("key", "fingerprint_prefix")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_PREFIX_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    fingerprint_prefix: bytes
    def __init__(self, key: _Optional[bytes] = ..., fingerprint_prefix: _Optional[bytes] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("epoch", "json")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    json: str
    def __init__(self, epoch: _Optional[int] = ..., json: _Optional[str] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckReply(_message.Message):
    __slots__ = ("epoch", "violations")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    violations: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., violations: _Optional[_Iterable[str]] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("fingerprint",)
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    def __init__(self, fingerprint: _Optional[bytes] = ...) -> None: ...

class ClearReply(_message.Message):
    __slots__ = ("epoch", "removed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    removed: int
    def __init__(self, epoch: _Optional[int] = ..., removed: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("epoch", "written", "left")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    written: int
    left: int
    def __init__(self, epoch: _Optional[int] = ..., written: _Optional[int] = ..., left: _Optional[int] = ...) -> None: ...
