-- A raw layer behind MySQL CDC with checkpoints of 15 s: its table, as an article gives it.
CREATE TABLE IF NOT EXISTS ods_order (
    id BIGINT,
    user_id BIGINT,
    amount DECIMAL(10, 2),
    status STRING,
    update_time TIMESTAMP(3),
    dt STRING,
    PRIMARY KEY (dt, id) NOT ENFORCED
) PARTITIONED BY (dt) WITH (
    'bucket' = '4',
    'num-sorted-run.stop-trigger' = '2147483647',
    'sort-spill-threshold' = '10',
    'changelog-producer' = 'input',
    'precommit-compact' = 'true',
    'write-buffer-spillable' = 'true',
    'file.format' = 'parquet',
    'file.compression' = 'zstd',
    'file.compression.zstd-level' = '3',
    'target-file-size' = '128mb'
);
