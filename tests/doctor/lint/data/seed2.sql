-- A table that an article calls proven in production, and its reader.
CREATE TABLE events (
    event_id STRING,
    user_id BIGINT,
    event_time TIMESTAMP(3),
    payload STRING,
    dt STRING,
    PRIMARY KEY (dt, event_id) NOT ENFORCED
) PARTITIONED BY (dt) WITH (
    'connector' = 'paimon',
    'path' = 'oss://lake/warehouse/db.db/events',
    's3.endpoint' = 'oss-cn-hangzhou.aliyuncs.com',
    'bucket' = '4',
    'bucket-key' = 'event_id',
    'format' = 'parquet',
    'write-only' = 'true',
    'snapshot.time-retained' = '6 h',
    'snapshot.num-retained.min' = '10',
    'compaction.max.file-num' = '50',
    'compaction.target.file-size' = '128 mb',
    'metadata.stats-mode' = 'truncate',
    'metadata.stats-truncate-length' = '128',
    'changelog-producer' = 'full-compaction',
    'full-compaction.strategy' = 'all',
    'full-compaction.delta-commits' = '30',
    'sink.savepoint-timeout' = '10min'
);

CREATE TABLE events_reader (
    event_id STRING,
    user_id BIGINT
) WITH (
    'connector' = 'paimon',
    'path' = 'oss://lake/warehouse/db.db/events',
    'streaming-source' = 'true',
    'streaming-source.monitor-interval' = '10s',
    'streaming-source.consume-order' = 'user-defined',
    'scan.snapshot-id' = 'LATEST'
);

CALL sys.compact(`table` => 'db.events', partition => 'dt=2024-01-01', mode => 'FULL');
SHOW SNAPSHOTS FROM events;
