"""Every name that leaves a kvpath process, once: services, spans, attributes, events, modes, metrics.

Terms are those of the field: prefill (P), decode (D), registration, rendezvous, WRITE, READ, descriptor,
completion, lease. A rename here is a rename everywhere: router, connector, analysis, dashboards and tests
import from this module and spell nothing themselves.
"""

from __future__ import annotations

# --- Services (resource attribute ``service.name``) ---------------------------------------------------------
SERVICE_ROUTER = "kvpath-router"
SERVICE_PREFILL = "vllm-prefill"
SERVICE_DECODE = "vllm-decode"

# --- Modes --------------------------------------------------------------------------------------------------
MODE_PUSH = "push"  # P WRITEs into D
MODE_PULL = "pull"  # D READs from P
MODE_REUSE = "reuse"  # pull, and D's KV goes back to P on the next turn
MODE_PLAIN = "plain"  # no transfer: D computes the prompt itself (a visible fall-back)
MODE_NONE = "none"  # the router refused the request before it decided a mode
TRANSFER_MODES = (MODE_PUSH, MODE_PULL, MODE_REUSE)

# --- Spans --------------------------------------------------------------------------------------------------
SPAN_ROUTE = "kvpath.route"
SPAN_LEG_PREFILL = "kvpath.leg.prefill"
SPAN_LEG_DECODE = "kvpath.leg.decode"
SPAN_PREFILL_QUEUE = "kvpath.prefill.queue"
SPAN_PREFILL_COMPUTE = "kvpath.prefill.compute"
SPAN_REGISTER = "kvpath.register"
SPAN_RENDEZVOUS = "kvpath.rendezvous"
SPAN_HANDSHAKE = "kvpath.handshake"
SPAN_WRITE = "kvpath.write"
SPAN_READ = "kvpath.read"
SUFFIX_PREPARE = ".prepare"
SUFFIX_SUBMIT = ".submit"
SUFFIX_FLIGHT = ".flight"
SPAN_AWAIT = "kvpath.await"
SPAN_FIRST_STEP = "kvpath.first_step"
SPAN_BLOCKS_HELD = "kvpath.blocks.held"
SPAN_REUSE_LOOKUP = "kvpath.reuse.lookup"

EVENT_FIRST_TOKEN = "first_token"  # on the router's SERVER span
EVENT_COMPLETION = "completion"  # on kvpath.await, one per completion notification

# --- Span attributes ----------------------------------------------------------------------------------------
ATTR_MODE = "kvpath.mode"  # str, one of the modes above
ATTR_REQUEST_ID = "kvpath.request_id"  # str, the router's X-Request-Id; the same on every span of a trace
ATTR_ENGINE_ID = "kvpath.engine_id"  # str, the engine that made the span
ATTR_CLIENT_REQUEST_ID = "kvpath.client_request_id"  # str, the X-Request-Id that the client sent, if any
ATTR_RANK = "kvpath.rank"  # int, tensor-parallel rank of the worker that made the span
ATTR_PEER_ENGINE_ID = "kvpath.peer.engine_id"  # str
ATTR_PEER_RANK = "kvpath.peer.rank"  # int
ATTR_PREFILL_REQUEST = "kvpath.prefill.request"  # str, P's engine request id, on transfers
ATTR_LAST_ARRIVAL = "kvpath.last_arrival"  # "registration" | "prefill", on kvpath.rendezvous
ATTR_OPERATION = "kvpath.operation"  # "WRITE" | "READ"
ATTR_BYTES = "kvpath.bytes"  # int
ATTR_DESCRIPTORS = "kvpath.descriptors"  # int, descriptors as handed to NIXL
ATTR_RUNS = "kvpath.contiguous_runs"  # int, runs of descriptors adjacent on both sides
ATTR_RATE = "kvpath.gigabytes_per_second"  # float, bytes / (submit + flight), 1e9 bytes
ATTR_POLL_GAP = "kvpath.poll_gap_ns"  # int: the end lies at most this much earlier than it was seen
ATTR_COMPLETION_COUNT = "kvpath.completion.count"  # int, running count, on the completion event
ATTR_COMPLETION_EXPECTED = "kvpath.completion.expected"  # int
ATTR_PRODUCER_RANK = "kvpath.producer.rank"  # int, on the completion event
ATTR_RELEASE_REASON = "kvpath.release_reason"  # one of RELEASE_*, on kvpath.blocks.held
ATTR_PHASE = "kvpath.route.phase"  # "prefill" | "decode" | "both", on kvpath.route
ATTR_POLICY = "kvpath.route.policy"  # str
ATTR_CANDIDATES = "kvpath.route.candidates"  # str[], "<engine>=<outstanding>"
ATTR_CHOSEN = "kvpath.route.chosen"  # str[], engine ids
ATTR_FALLBACK = "kvpath.fallback"  # str, why this request runs in mode "plain"
ATTR_UNCOUNTED = "kvpath.uncounted"  # str, on the router's SERVER span: why no figure counts this request, UNCOUNTED_*
ATTR_INCOMPLETE = "kvpath.incomplete"  # str[], what telemetry lost of this span: some of LOST_*
ATTR_PROMPT_TOKENS = "kvpath.prompt_tokens"  # int, on kvpath.prefill.queue
ATTR_EXTERNAL_TOKENS = "kvpath.external_tokens"  # int, tokens whose KV comes from the other engine
ATTR_CACHED_TOKENS = "kvpath.cached_tokens"  # int, on kvpath.prefill.compute: prompt tokens that P did not compute
ATTR_REUSE_OUTCOME = "kvpath.reuse.outcome"  # str, one of REUSE_OUTCOMES
ATTR_REUSE_TOKENS = "kvpath.reuse.tokens"  # int, tokens whose KV D kept and the router offered to P
ATTR_REUSE_MATCHED_TOKENS = "kvpath.reuse.matched_tokens"  # int, on kvpath.prefill.queue: as many are the prompt's own
ATTR_REUSE_AGE = "kvpath.reuse.age_s"  # float, since the turn before ended
ATTR_ERROR_TYPE = "error.type"
# Of OpenTelemetry's semantic conventions:
ATTR_GEN_AI_OPERATION = "gen_ai.operation.name"  # str, "chat" | "text_completion"
ATTR_GEN_AI_PROVIDER = "gen_ai.provider.name"  # str, PROVIDER
ATTR_GEN_AI_MODEL = "gen_ai.request.model"  # str
ATTR_GEN_AI_INPUT_TOKENS = "gen_ai.usage.input_tokens"  # int
ATTR_GEN_AI_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"  # int
ATTR_HTTP_METHOD = "http.request.method"  # str
ATTR_HTTP_STATUS = "http.response.status_code"  # int
ATTR_URL_PATH = "url.path"  # str
PROVIDER = "vllm"

ATTR_BOOT_ID = "kvpath.boot_id"  # resource: processes with one boot id share one clock

# --- Wire ---------------------------------------------------------------------------------------------------
HEADER_MODE = "x-kvpath-mode"
HEADER_UNCOUNTED = "x-kvpath-uncounted"  # one of UNCOUNTED_REASONS; honoured where HEADER_MODE is, sent to no engine
HEADER_REQUEST_ID = "x-request-id"
HEADER_TRACEPARENT = "traceparent"
HEADER_TRACESTATE = "tracestate"
HEADER_TRACE_ID = "x-kvpath-trace-id"  # on the router's responses
HEADER_FALLBACK = "x-kvpath-fallback"  # on the router's responses, when a request fell back to mode "plain"
HEADER_CONVERSATION = "x-conversation-id"
HEADER_REUSE = "x-kvpath-reuse"  # on the router's responses in mode reuse: one of REUSE_OUTCOMES or REUSE_NOT_FOLLOWED
HEADER_ANNOTATED = "x-kvpath-annotated"  # on the answer to a change of the split: the router annotates it in Grafana
PARAM_TRACEPARENT = "traceparent"  # inside kv_transfer_params
PARAM_REQUEST_ID = "kvpath_request_id"  # inside kv_transfer_params
PARAM_MODE = "transfer_mode"  # inside kv_transfer_params; upstream's own key
PARAM_TOKEN_MARKS = "kvpath_token_marks"  # inside kv_transfer_params, mode reuse: [[tokens, digest], ...]
PARAM_KEEP = "kvpath_keep"  # inside D's kv_transfer_params, mode reuse: False when nobody can go on from this turn
PARAM_BLOCK_SIZE = "kvpath_block_size"  # inside kv_transfer_params, mode reuse: tokens of one of D's blocks
PARAM_INSTANCE = "kvpath_instance"  # of the engine whose blocks they are; its NIXL engine id changes with every boot
PARAM_TELEMETRY = "kvpath"  # inside a push registration: what P's writer needs for its spans

LAST_ARRIVAL_REGISTRATION = "registration"
LAST_ARRIVAL_PREFILL = "prefill"
RELEASE_DONE = "done"
RELEASE_LEASE_EXPIRED = "lease_expired"
RELEASE_ABORTED = "aborted"  # the prefill did not come to its end: its blocks were never offered
UNCOUNTED_STEP = "step"  # so that an idle engine looks for notifications
UNCOUNTED_READINESS = "readiness"  # a launcher proves that a mode generates
UNCOUNTED_TRIAL = "trial"  # a measurement learns how many characters make a token, or whether a prompt fits
UNCOUNTED_WARM_UP = "warm-up"  # a measurement pays for handshakes before what it compares
UNCOUNTED_FAREWELL = "farewell"  # ends a conversation, so that D frees what it kept of it
UNCOUNTED_REASONS = (UNCOUNTED_STEP, UNCOUNTED_READINESS, UNCOUNTED_TRIAL, UNCOUNTED_WARM_UP, UNCOUNTED_FAREWELL)
LOST_START = "start"  # the span starts at the first instant that is known
LOST_END = "end"  # the span ends at the last instant that is known
LOST_POST = "post"  # when the transfer was posted: it has neither .submit nor .flight
LOST_SIZE = "size"  # how many bytes were transferred
LOST_REASON = "reason"  # why the blocks were released
REUSE_STAGE_PREFIX = "reuse_"  # of the stages of P's READ of what D kept
REUSE_HIT = "hit"
REUSE_MISS = "miss"  # the router knows no earlier turn
REUSE_EXPIRED = "expired"
REUSE_TOO_SHORT = "too_short"
REUSE_EDITED = "edited"  # the history is not the one whose KV was kept
REUSE_GONE = "gone"  # D no longer has it: restarted, used or freed
REUSE_NO_CONVERSATION = "no_conversation"  # nothing was looked up: the request names none
REUSE_NOT_PLAIN_TEXT = "not_plain_text"  # nothing was looked up: images, adapters, a cache salt, ...
REUSE_NOT_FOLLOWED = (REUSE_NO_CONVERSATION, REUSE_NOT_PLAIN_TEXT)
REUSE_OUTCOMES = (REUSE_HIT, REUSE_MISS, REUSE_EXPIRED, REUSE_TOO_SHORT, REUSE_EDITED, REUSE_GONE)
OPERATION_WRITE = "WRITE"
OPERATION_READ = "READ"

# --- Metrics of the critical-path exporter ------------------------------------------------------------------
METRIC_EXPORTER_CRITICAL_PATH = "kvpath_critical_path_seconds"  # histogram by mode, stage
METRIC_EXPORTER_TTFT = "kvpath_ttft_seconds"  # histogram by mode
METRIC_EXPORTER_OVERLAPPED = "kvpath_overlapped_seconds"  # histogram by mode
METRIC_EXPORTER_TRACES = "kvpath_traces"  # counter by mode, outcome
METRIC_EXPORTER_INCOMPLETE = "kvpath_incomplete"  # counter by reason
METRIC_EXPORTER_CLOCK = "kvpath_clock_uncertainty_seconds"  # histogram by mode
METRIC_EXPORTER_LAG = "kvpath_exporter_lag_seconds"  # gauge
METRIC_EXPORTER_WAITING = "kvpath_exporter_waiting_traces"  # gauge
METRIC_EXPORTER_POLL_ERRORS = "kvpath_exporter_poll_errors"  # counter
METRIC_EXPORTER_DIFFERENCE = "kvpath_ttft_difference_seconds"  # gauge by bound: median | low | high; push minus pull
METRIC_EXPORTER_SAMPLES = "kvpath_ttft_difference_samples"  # gauge by mode

# --- Metrics of the embedded trace store --------------------------------------------------------------------
METRIC_STORE_RECEIVED = "kvpath_store_spans_received"
METRIC_STORE_STORED = "kvpath_store_spans_stored"
METRIC_STORE_REJECTED = "kvpath_store_spans_rejected"
METRIC_STORE_DROPPED = "kvpath_store_spans_dropped"
METRIC_STORE_REFUSED = "kvpath_store_requests_refused"  # by reason
METRIC_STORE_EVICTED = "kvpath_store_traces_evicted"  # by reason: "age" | "size"
METRIC_STORE_BYTES = "kvpath_store_database_bytes"
METRIC_STORE_QUEUE = "kvpath_store_queue_bytes"

# --- Grafana ------------------------------------------------------------------------------------------------
GRAFANA_FOLDER_UID = "kvpath"
GRAFANA_FOLDER_TITLE = "kvpath"
GRAFANA_PROMETHEUS_UID = "kvpath-prometheus"  # data source
GRAFANA_TEMPO_UID = "kvpath-tempo"  # data source
ANNOTATION_SPLIT = ("kvpath", "split")  # tags
ANNOTATION_EXPERIMENT = ("kvpath", "experiment")  # tags; the block's mode comes after them
