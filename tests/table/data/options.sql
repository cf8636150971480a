-- What Java wrote and read for tests/golden/options.tar.xz: oracle-sql --dump-dir expected -DWAREHOUSE=file:DIR options.sql (reads through
-- Flink: the core reader does not know these options). A query whose text Flink refuses has no dump.
CREATE CATALOG o WITH ('type'='paimon', 'warehouse'='${WAREHOUSE}');
USE CATALOG o;
SET 'execution.checkpointing.interval' = '1 h';
SET 'execution.runtime-mode' = 'batch';
CREATE DATABASE late;
USE late;
-- postponed buckets, merged on read
CREATE TABLE dd (dt STRING, k INT, v BIGINT, w STRING, PRIMARY KEY (dt, k) NOT ENFORCED) PARTITIONED BY (dt) WITH ('bucket'='-2', 'postpone.merge-on-read'='true', 'postpone.default-bucket-num'='3');
CREATE TABLE seqf (k INT, s INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='-2', 'postpone.merge-on-read'='true', 'postpone.default-bucket-num'='2', 'sequence.field'='s');
CREATE TABLE agg (k INT, n BIGINT, l STRING, m INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='-2', 'postpone.merge-on-read'='true', 'postpone.default-bucket-num'='2', 'merge-engine'='aggregation', 'fields.n.aggregate-function'='sum', 'fields.l.aggregate-function'='listagg', 'fields.l.ignore-retract'='true', 'fields.m.aggregate-function'='last_non_null_value', 'fields.m.ignore-retract'='true');
CREATE TABLE pu (k INT, a INT, b INT, c INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='-2', 'postpone.merge-on-read'='true', 'postpone.default-bucket-num'='2', 'merge-engine'='partial-update', 'partial-update.remove-record-on-delete'='true');
CREATE TABLE fr (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='-2', 'postpone.merge-on-read'='true', 'postpone.default-bucket-num'='2', 'merge-engine'='first-row', 'changelog-producer'='lookup');
CREATE TABLE dv (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='-2', 'postpone.merge-on-read'='true', 'postpone.default-bucket-num'='2', 'deletion-vectors.enabled'='true');
CREATE TABLE ig (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='-2', 'postpone.merge-on-read'='true', 'postpone.default-bucket-num'='2', 'ignore-delete'='true');
-- real buckets
EXECUTE STATEMENT SET BEGIN
INSERT INTO dd SELECT CASE WHEN x < 20 THEN 'a' ELSE 'b' END, x, CAST(x AS BIGINT), CONCAT('real', CAST(x AS STRING)) FROM (VALUES (1),(2),(3),(4),(5),(6),(7),(8),(9),(10),(11),(12),(21),(22),(23),(24),(25)) AS t(x);
INSERT INTO seqf VALUES (1,10,'r1'),(2,10,'r2'),(3,10,'r3'),(4,10,'r4'),(5,10,'r5');
INSERT INTO agg VALUES (1,1,'r',1),(2,2,'r',2),(3,3,'r',3),(4,4,'r',4);
INSERT INTO pu VALUES (1,1,1,1),(2,2,2,2),(3,3,3,3),(4,4,4,4);
INSERT INTO fr VALUES (1,'r1'),(2,'r2'),(3,'r3'),(4,'r4');
INSERT INTO dv VALUES (1,'r1'),(2,'r2'),(3,'r3'),(4,'r4'),(5,'r5');
INSERT INTO ig VALUES (1,'r1'),(2,'r2');
END;
CALL sys.compact(`table` => 'late.dv');
CALL sys.compact(`table` => 'late.fr');
-- more real rows: level 0 over compacted files
EXECUTE STATEMENT SET BEGIN
INSERT INTO dv VALUES (2,'again2'),(6,'r6');
INSERT INTO dd VALUES ('a', 2, 200, 'real2 again');
END;
-- @changes c1
SELECT * FROM (VALUES ('+I','a',1,CAST(1001 AS BIGINT),'late1'),('-D','a',3,CAST(3 AS BIGINT),'real3'),('+I','a',13,CAST(13 AS BIGINT),'late13'),('+I','a',4,CAST(40 AS BIGINT),'x'),('-U','a',4,CAST(40 AS BIGINT),'x'),('+U','a',4,CAST(41 AS BIGINT),'late4'),('-D','b',77,CAST(1 AS BIGINT),'never there'),('+I','c',31,CAST(31 AS BIGINT),'late31'),('+I','c',32,CAST(32 AS BIGINT),'gone'),('-D','c',32,CAST(32 AS BIGINT),'gone'),('+I','a',14,CAST(14 AS BIGINT),'order 6')) AS x(op, dt, k, v, w);
-- @changes c2
SELECT * FROM (VALUES ('+I',1,5,'older'),('+I',2,15,'newer'),('+I',3,10,'same'),('-D',4,20,'r4'),('-D',5,1,'stale delete'),('+I',6,1,'new'),('+I',7,9,'n9'),('+I',7,3,'n3')) AS x(op, k, s, v);
-- @changes c3
SELECT * FROM (VALUES ('+I',1,CAST(10 AS BIGINT),'p',CAST(NULL AS INT)),('+I',1,CAST(20 AS BIGINT),'q',7),('-U',2,CAST(1 AS BIGINT),'r',2),('+I',9,CAST(5 AS BIGINT),'s',CAST(NULL AS INT))) AS x(op, k, n, l, m);
-- @changes c4
SELECT * FROM (VALUES ('+I',1,CAST(NULL AS INT),10,CAST(NULL AS INT)),('-D',2,2,2,2),('+I',2,CAST(NULL AS INT),20,CAST(NULL AS INT)),('-D',3,3,3,3),('+I',5,5,CAST(NULL AS INT),5),('+I',5,CAST(NULL AS INT),50,CAST(NULL AS INT))) AS x(op, k, a, b, c);
-- @changes c5
SELECT * FROM (VALUES ('+I',1,'late1'),('+I',8,'late8'),('+I',8,'late8 again')) AS x(op, k, v);
-- @changes c6
SELECT * FROM (VALUES ('+I',1,'late1'),('-D',2,'again2'),('-D',3,'r3'),('+I',7,'late7')) AS x(op, k, v);
-- @changes c7
SELECT * FROM (VALUES ('-D',1,'r1'),('-D',9,'lone'),('+I',2,'late2'),('-D',2,'late2')) AS x(op, k, v);
SET 'execution.runtime-mode'='streaming';
EXECUTE STATEMENT SET BEGIN
INSERT INTO dd SELECT * FROM c1;
INSERT INTO seqf SELECT * FROM c2;
INSERT INTO agg SELECT * FROM c3;
INSERT INTO pu SELECT * FROM c4;
INSERT INTO fr SELECT * FROM c5;
INSERT INTO dv SELECT * FROM c6;
INSERT INTO ig SELECT * FROM c7;
END;
-- a second writer of the postponed bucket: its first row is older than the seventh of the first writer
INSERT INTO dd VALUES ('a', 14, 99, 'order 0'), ('a', 5, 500, 'second');
SET 'execution.runtime-mode'='batch';
-- partitions to choose from
CREATE TABLE pt (dt STRING, hh INT, k INT, v STRING) PARTITIONED BY (dt, hh) WITH ('bucket'='-1');
CREATE TABLE ptk (d DATE, k INT, v STRING, PRIMARY KEY (d, k) NOT ENFORCED) PARTITIONED BY (d) WITH ('bucket'='1');
CREATE TABLE flat (k INT, v STRING) WITH ('bucket'='-1');
CREATE TABLE ord (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='1', 'sequence.snapshot-ordering'='true', 'write-only'='true');
EXECUTE STATEMENT SET BEGIN
INSERT INTO pt VALUES ('2024-01-01',1,1,'a'),('2024-01-01',10,2,'b'),('2024-01-02',2,3,'c'),('2024-01-02',9,4,'d'),('2024-01-02',10,5,'e'),(CAST(NULL AS STRING),11,6,'f'),('2024-01-01',CAST(NULL AS INT),7,'g');
INSERT INTO ptk VALUES (DATE '2024-01-01',1,'a'),(DATE '2024-02-01',2,'b'),(DATE '2023-12-31',3,'c');
INSERT INTO flat VALUES (1,'a');
INSERT INTO ord SELECT k, 'first' FROM (VALUES (1),(2),(3),(4),(5),(6),(7),(8),(9),(10),(11),(12)) AS t(k);
END;
INSERT INTO ord VALUES (9,'second'),(10,'second'),(13,'second');
INSERT INTO ptk VALUES (DATE '2024-01-01',1,'a2'),(DATE '2024-03-01',9,'z');
-- @dump dd
SELECT * FROM dd;
-- @dump seqf
SELECT * FROM seqf;
-- @dump agg
SELECT * FROM agg;
-- @dump pu
SELECT * FROM pu;
-- @dump fr
SELECT * FROM fr;
-- @dump dv
SELECT * FROM dv;
-- @dump ig
SELECT * FROM ig;
-- @dump dd.where_v
SELECT k, w FROM dd WHERE v >= 30;
-- @dump dd.where_k
SELECT * FROM dd WHERE k IN (2, 3, 14);
-- @dump dd.where_p
SELECT * FROM dd WHERE dt = 'c';
-- @dump dd.columns
SELECT w FROM dd;
-- @dump dd.first
SELECT * FROM dd /*+ OPTIONS('scan.snapshot-id'='1') */;
-- @dump dd.plain
SELECT * FROM dd /*+ OPTIONS('postpone.merge-on-read'='false') */;
-- @dump dv.plain
SELECT * FROM dv /*+ OPTIONS('postpone.merge-on-read'='false') */;
-- @dump dd.compacted
SELECT * FROM dd /*+ OPTIONS('scan.mode'='compacted-full') */;
-- @dump dd.maxpt
SELECT * FROM dd /*+ OPTIONS('scan.partitions'='max_pt()') */;
-- @dump dd.count
SELECT COUNT(*) AS c FROM dd;
-- @dump seqf.where_v
SELECT * FROM seqf WHERE v = 'older';
-- @dump fr.where_v
SELECT * FROM fr WHERE v = 'late1';
-- @dump pt.max
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='max_pt()') */;
-- @dump pt.max_upper
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='MAX_PT()') */;
-- @dump pt.two
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='max_two_pt()') */;
-- @dump pt.one
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=2024-01-01,hh=10') */;
-- @dump pt.some
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=2024-01-01,hh=10;hh=2,dt=2024-01-02 ; dt=nope,hh=3') */;
-- @dump pt.level0
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=max_pt()') */;
-- @dump pt.level1
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=max_pt(),hh=max_pt()') */;
-- @dump pt.level_mixed
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=max_pt(),hh=2') */;
-- @dump pt.half
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=2024-01-01') */;
-- @dump pt.nulls
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=__DEFAULT_PARTITION__,hh=11') */;
-- @dump pt.nulls2
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=2024-01-01,hh=__DEFAULT_PARTITION__') */;
-- @dump pt.level_top
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='hh=max_pt()') */;
-- @dump pt.unknown
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=2024-01-01,zz=1') */;
-- @dump pt.bad_int
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='dt=2024-01-01,hh=x') */;
-- @dump pt.nonsense
SELECT * FROM pt /*+ OPTIONS('scan.partitions'='hello') */;
-- @dump flat.max
SELECT * FROM flat /*+ OPTIONS('scan.partitions'='max_pt()') */;
-- @dump ptk.max
SELECT * FROM ptk /*+ OPTIONS('scan.partitions'='max_pt()') */;
-- @dump ptk.two
SELECT * FROM ptk /*+ OPTIONS('scan.partitions'='max_two_pt()') */;
-- @dump ptk.one
SELECT * FROM ptk /*+ OPTIONS('scan.partitions'='d=2024-01-01') */;
-- @dump ptk.bad
SELECT * FROM ptk /*+ OPTIONS('scan.partitions'='d=soon') */;
-- @dump ptk.past
SELECT * FROM ptk /*+ OPTIONS('scan.partitions'='max_pt()', 'scan.snapshot-id'='1') */;
-- @dump ptk.where
SELECT * FROM ptk /*+ OPTIONS('scan.partitions'='max_two_pt()') */ WHERE d < DATE '2024-02-15';
-- @dump ptk.between
SELECT * FROM ptk /*+ OPTIONS('scan.partitions'='max_pt()', 'incremental-between'='1,2') */;
-- @dump ord
SELECT * FROM ord;
SET 'execution.runtime-mode' = 'streaming'; SET 'execution.checkpointing.interval' = '1 s';
-- @idle 4
-- @timeout 20
-- @dump ptk.stream
SELECT * FROM ptk /*+ OPTIONS('scan.partitions'='max_pt()') */;
-- @idle 4
-- @timeout 20
-- @dump ptk.stream_from
SELECT * FROM ptk /*+ OPTIONS('scan.partitions'='max_two_pt()','scan.mode'='from-snapshot','scan.snapshot-id'='1') */;
-- @idle 3
-- @timeout 10
-- @dump dd.stream
SELECT * FROM dd;
CREATE DATABASE IF NOT EXISTS maps;
USE maps;
SET 'execution.runtime-mode' = 'batch';
CREATE TABLE pq (id INT, m MAP<STRING NOT NULL, INT>, n MAP<STRING NOT NULL, STRING> , plain MAP<STRING NOT NULL, INT> ) WITH ('bucket'='-1', 'file.format'='parquet', 'fields.m.map.storage-layout'='shared-shredding', 'fields.n.map.storage-layout'='shared-shredding', 'fields.m.map.shared-shredding.max-columns'='3', 'fields.n.map.shared-shredding.max-columns'='2');
CREATE TABLE oc (id INT, m MAP<STRING NOT NULL, INT>, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket'='1', 'file.format'='orc', 'fields.m.map.storage-layout'='shared-shredding', 'fields.m.map.shared-shredding.max-columns'='3');
CREATE TABLE pk (id INT, m MAP<STRING NOT NULL, ROW<a INT, b ARRAY<STRING>>>, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket'='1', 'fields.m.map.storage-layout'='shared-shredding', 'fields.m.map.shared-shredding.max-columns'='2');
EXECUTE STATEMENT SET BEGIN
INSERT INTO pq VALUES (1, MAP['a',1,'b',2], MAP['x','1'], MAP['a',1]), (2, MAP['c',3,'a',4,'d',5,'e',6,'f',7], MAP['y',CAST(NULL AS STRING),'x','2','z','3'], CAST(NULL AS MAP<STRING, INT> )), (3, CAST(NULL AS MAP<STRING, INT> ), CAST(NULL AS MAP<STRING,STRING>), MAP['q',9]), (4, MAP['zz',CAST(NULL AS INT),'b',8], MAP['x','7'], MAP['a',CAST(NULL AS INT)]);
INSERT INTO oc VALUES (1, MAP['a',1,'b',2]), (2, MAP['c',3,'a',4,'d',5,'e',6,'f',7]), (3, CAST(NULL AS MAP<STRING, INT> ));
INSERT INTO pk VALUES (1, MAP['a',ROW(1,ARRAY['x','y']),'b',ROW(2,CAST(NULL AS ARRAY<STRING>)),'c',ROW(3,ARRAY['z'])]), (2, MAP['c', ROW(4, ARRAY['w'])]);
END;
ALTER TABLE pq SET ('fields.m.map.storage-layout'='default');
EXECUTE STATEMENT SET BEGIN
INSERT INTO pq VALUES (5, MAP['a',50], MAP['w','50'], MAP['a',1]);
INSERT INTO oc VALUES (2, MAP['g',1]);
INSERT INTO pk VALUES (2, CAST(NULL AS MAP<STRING, ROW<a INT, b ARRAY<STRING>>>));
END;
-- @dump maps.pq
SELECT * FROM pq;
-- @dump maps.oc
SELECT * FROM oc;
-- @dump maps.pk
SELECT * FROM pk;
USE late;
ALTER TABLE ord SET ('table-read.sequence-number.enabled'='true');
-- @dump ord.audit
SELECT * FROM ord$audit_log ;
-- a compaction needs the dedicated job: files stay at level 0
INSERT INTO ord VALUES (1,'third'),(9,'third');
-- @dump ord.audit_after
SELECT * FROM ord$audit_log ;
-- @dump ord.after
SELECT * FROM ord;
SET 'execution.runtime-mode' = 'batch'; SET 'execution.checkpointing.interval' = '1 h';
USE late;
-- many real buckets: postponed rows are routed
CREATE TABLE mb (k INT, c STRING, v STRING, PRIMARY KEY (k, c) NOT ENFORCED) WITH ('bucket'='-2', 'bucket-key'='k', 'postpone.merge-on-read'='true', 'postpone.batch-write-fixed-bucket'='false');
INSERT INTO mb SELECT k, c, CONCAT('real', CAST(k AS STRING), c) FROM (VALUES (1),(2),(3),(4),(5),(6),(7),(8),(9),(10),(11),(12),(13),(14),(15),(16)) AS t(k), (VALUES ('a'),('b')) AS u(c);
CALL sys.compact(`table` => 'late.mb', options => 'postpone.default-bucket-num=4');
-- @changes d1
SELECT * FROM (VALUES ('+I',1,'a','late'),('-D',2,'b','x'),('+I',7,'a','late'),('+I',16,'b','late'),('+I',20,'a','new'),('-D',9,'a','x'),('+I',9,'a','back'),('+I',33,'z','new'),('-D',33,'z','new')) AS x(op, k, c, v);
SET 'execution.runtime-mode'='streaming';
INSERT INTO mb SELECT * FROM d1;
SET 'execution.runtime-mode'='batch';
-- files sorted by other columns than the key
CREATE DATABASE cl;
USE cl;
CREATE TABLE dv (k INT, w STRING, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='1', 'deletion-vectors.enabled'='true', 'pk-clustering-override'='true', 'clustering.columns'='w');
CREATE TABLE fr (k INT, w STRING, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='1', 'merge-engine'='first-row', 'pk-clustering-override'='true', 'clustering.columns'='w');
CREATE TABLE two (a STRING, k INT, w STRING, v INT, PRIMARY KEY (a, k) NOT ENFORCED) WITH ('bucket'='2', 'deletion-vectors.enabled'='true', 'pk-clustering-override'='true', 'clustering.columns'='v,w');
EXECUTE STATEMENT SET BEGIN
INSERT INTO dv VALUES (1,'z',1),(2,'y',2),(3,'x',3),(4,'w',4),(5,'a',5);
INSERT INTO fr VALUES (1,'z',1),(2,'y',2),(3,'x',3),(4,'w',4),(5,'a',5);
INSERT INTO two VALUES ('p',1,'z',1),('p',2,'y',-2),('q',3,'x',3),('q',4,'w',-4),('r',5,'a',5);
END;
EXECUTE STATEMENT SET BEGIN
INSERT INTO dv VALUES (2,'b',20),(6,'c',6),(5,'zz',50);
INSERT INTO fr VALUES (2,'b',20),(6,'c',6),(5,'zz',50);
INSERT INTO two VALUES ('p',1,'a',100),('s',1,'k',7);
END;
-- @changes e1
SELECT * FROM (VALUES ('-D',1,'z',1),('+I',7,'d',7),('+U',3,'e',30)) AS x(op, k, w, v);
SET 'execution.runtime-mode'='streaming';
INSERT INTO dv SELECT * FROM e1;
SET 'execution.runtime-mode'='batch';
-- @dump cl.dv
SELECT * FROM dv;
-- @dump cl.fr
SELECT * FROM fr;
-- @dump cl.two
SELECT * FROM two;
-- @dump cl.dv.k
SELECT * FROM dv WHERE k = 3;
-- @dump cl.dv.w
SELECT * FROM dv WHERE w > 'd';
-- @dump cl.dv.files
SELECT level, record_count, min_key, max_key FROM dv$files;
-- @dump mb
SELECT * FROM late.mb;
-- @dump mb.where
SELECT * FROM late.mb WHERE k = 9;
-- chains of partitions over two branches
CREATE DATABASE chain;
USE chain;
CREATE TABLE d (k BIGINT, s BIGINT, v STRING, dt STRING) PARTITIONED BY (dt) WITH ('primary-key'='dt,k', 'bucket-key'='k', 'bucket'='2', 'sequence.field'='s', 'merge-engine'='deduplicate', 'chain-table.enabled'='true', 'partition.timestamp-pattern'='$dt', 'partition.timestamp-formatter'='yyyyMMdd');
CREATE TABLE h (k BIGINT, s BIGINT, v STRING, dt STRING, hh STRING) PARTITIONED BY (dt, hh) WITH ('primary-key'='dt,hh,k', 'bucket-key'='k', 'bucket'='1', 'sequence.field'='s', 'merge-engine'='deduplicate', 'chain-table.enabled'='true', 'partition.timestamp-pattern'='$dt $hh:00:00', 'partition.timestamp-formatter'='yyyyMMdd HH:mm:ss');
CREATE TABLE g (k BIGINT, s BIGINT, v STRING, region STRING, dt STRING) PARTITIONED BY (region, dt) WITH ('primary-key'='region,dt,k', 'bucket-key'='k', 'bucket'='2', 'sequence.field'='s', 'merge-engine'='deduplicate', 'chain-table.enabled'='true', 'chain-table.chain-partition-keys'='dt', 'partition.timestamp-pattern'='$dt', 'partition.timestamp-formatter'='yyyyMMdd');
CALL sys.create_branch('chain.d', 'snapshot');
CALL sys.create_branch('chain.d', 'delta');
ALTER TABLE d SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
ALTER TABLE `d$branch_snapshot` SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
ALTER TABLE `d$branch_delta` SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
CALL sys.create_branch('chain.h', 'snapshot');
CALL sys.create_branch('chain.h', 'delta');
ALTER TABLE h SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
ALTER TABLE `h$branch_snapshot` SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
ALTER TABLE `h$branch_delta` SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
CALL sys.create_branch('chain.g', 'snapshot');
CALL sys.create_branch('chain.g', 'delta');
ALTER TABLE g SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
ALTER TABLE `g$branch_snapshot` SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
ALTER TABLE `g$branch_delta` SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
INSERT OVERWRITE d PARTITION (dt='20250810') VALUES (1,1,'main'),(2,1,'main');
EXECUTE STATEMENT SET BEGIN
INSERT INTO `d$branch_delta` VALUES (1,1,'d09','20250809'),(2,1,'d09','20250809'),(1,2,'d10','20250810'),(3,1,'d10','20250810'),(2,2,'d11','20250811'),(4,1,'d11','20250811'),(3,2,'d12','20250812'),(4,2,'d12','20250812'),(7,1,'d12','20250812'),(5,1,'d13','20250813'),(1,1,'d13 old','20250813'),(5,2,'d15','20250815');
INSERT INTO `d$branch_snapshot` VALUES (1,2,'s10','20250810'),(2,1,'s10','20250810'),(3,1,'s10','20250810'),(1,2,'s12','20250812'),(2,2,'s12','20250812'),(3,2,'s12','20250812'),(4,2,'s12','20250812');
INSERT INTO `h$branch_delta` VALUES (1,1,'09-22','20250809','22'),(2,1,'09-23','20250809','23'),(1,3,'10-00','20250810','00'),(3,2,'10-05','20250810','05'),(9,1,'12-01','20250812','01');
INSERT INTO `h$branch_snapshot` VALUES (1,2,'s09-23','20250809','23'),(2,1,'s09-23','20250809','23'),(3,1,'s10-03','20250810','03');
INSERT INTO `g$branch_delta` VALUES (1,1,'eu09','eu','20250809'),(1,2,'eu11','eu','20250811'),(2,1,'eu12','eu','20250812'),(1,1,'us10','us','20250810'),(5,1,'us12','us','20250812');
INSERT INTO `g$branch_snapshot` VALUES (1,1,'seu10','eu','20250810'),(7,1,'seu10','eu','20250810'),(8,1,'sus11','us','20250811');
END;
-- @changes f1
SELECT * FROM (VALUES ('-D',CAST(2 AS BIGINT),CAST(9 AS BIGINT),'x','20250813'),('+I',CAST(6 AS BIGINT),CAST(1 AS BIGINT),'d13','20250813'),('-D',CAST(77 AS BIGINT),CAST(9 AS BIGINT),'x','20250815')) AS x(op, k, s, v, dt);
SET 'execution.runtime-mode'='streaming';
INSERT INTO `d$branch_delta` SELECT * FROM f1;
SET 'execution.runtime-mode'='batch';
-- @dump chain.d
SELECT * FROM d;
-- @dump chain.h
SELECT * FROM h;
-- @dump chain.g
SELECT * FROM g;
-- @dump chain.d.where_p
SELECT * FROM d WHERE dt = '20250811';
-- @dump chain.d.where_k
SELECT * FROM d WHERE k = 1;
-- @dump chain.d.where_v
SELECT * FROM d WHERE v = 'd13 old' OR v = 's12';
-- @dump chain.d.where_more
SELECT k, v FROM d WHERE dt > '20250812' AND k < 5;
-- @dump chain.d.delta
SELECT * FROM `d$branch_delta`;
-- @dump chain.d.snapshot
SELECT * FROM `d$branch_snapshot`;
-- @dump chain.d.past
SELECT * FROM d /*+ OPTIONS('scan.snapshot-id'='1') */;
-- @dump chain.g.where
SELECT * FROM g WHERE region = 'us';
USE late;
-- each side is merged by itself first: the order of listagg shows it
CREATE TABLE agseq (k INT, s INT, l STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='-2', 'postpone.merge-on-read'='true', 'postpone.batch-write-fixed-bucket'='false', 'merge-engine'='aggregation', 'sequence.field'='s', 'fields.l.aggregate-function'='listagg');
INSERT INTO agseq VALUES (1,10,'r10'),(2,10,'r10');
CALL sys.compact(`table` => 'late.agseq', options => 'postpone.default-bucket-num=2');
INSERT INTO agseq VALUES (1,5,'p5'),(1,15,'p15'),(2,7,'p7'),(2,3,'p3'),(3,1,'p1'),(3,0,'p0');
-- @dump agseq
SELECT * FROM agseq;
-- @dump dv.compact_scan
SELECT * FROM dv /*+ OPTIONS('postpone.merge-on-read'='false', 'batch-scan-mode'='compact') */;
-- @dump dv.merge_on_read
SELECT * FROM dv /*+ OPTIONS('postpone.merge-on-read'='false', 'deletion-vectors.merge-on-read'='true') */;
USE chain;
CREATE TABLE v (k BIGINT, s BIGINT, v STRING, dt STRING) PARTITIONED BY (dt) WITH ('primary-key'='dt,k', 'bucket-key'='k', 'bucket'='1', 'sequence.field'='s', 'merge-engine'='deduplicate', 'deletion-vectors.enabled'='true', 'chain-table.enabled'='true', 'partition.timestamp-pattern'='$dt', 'partition.timestamp-formatter'='yyyyMMdd');
CALL sys.create_branch('chain.v', 'snapshot');
CALL sys.create_branch('chain.v', 'delta');
ALTER TABLE v SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
ALTER TABLE `v$branch_snapshot` SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
ALTER TABLE `v$branch_delta` SET ('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta');
EXECUTE STATEMENT SET BEGIN
INSERT INTO `v$branch_snapshot` VALUES (1,1,'s10','20250810'),(2,1,'s10','20250810'),(3,1,'s10','20250810'),(4,1,'s10','20250810');
INSERT INTO `v$branch_delta` VALUES (1,2,'d11','20250811'),(5,1,'d11','20250811'),(6,1,'d11','20250811'),(7,1,'d12','20250812');
END;
-- @changes g1
SELECT * FROM (VALUES ('-D',CAST(1 AS BIGINT),CAST(3 AS BIGINT),'x','20250811'),('+I',CAST(5 AS BIGINT),CAST(2 AS BIGINT),'d11 new','20250811'),('-D',CAST(2 AS BIGINT),CAST(3 AS BIGINT),'x','20250812'),('-D',CAST(6 AS BIGINT),CAST(5 AS BIGINT),'x','20250812')) AS x(op, k, s, v, dt);
SET 'execution.runtime-mode'='streaming';
INSERT INTO `v$branch_delta` SELECT * FROM g1;
SET 'execution.runtime-mode'='batch';
-- @dump chain.v
SELECT * FROM v;
-- @dump chain.v.delta
SELECT * FROM `v$branch_delta`;
-- @dump chain.v.files
SELECT `partition`, level, record_count, deleteRowCount FROM v$branch_delta$files;
