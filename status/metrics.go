package status

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"pgreshard/move"
)

// collector makes metrics of one snapshot at each scrape. What was not measured is left out, never 0.
type collector struct{ snapshot func() move.Status }

// Describe sends nothing: which series there are depends on the move.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the snapshot once, so that all series are of one moment.
func (c collector) Collect(out chan<- prometheus.Metric) {
	s := c.snapshot()
	for _, state := range states {
		out <- gauge(stateDesc, truth(s.State == state), state)
	}
	out <- gauge(layoutDesc, float64(s.Layout.Serving))
	out <- gauge(safeDesc, truth(s.SafeToCutOver.OK))
	out <- gauge(failedDesc, truth(s.Error != nil))
	out <- gauge(waitingDesc, truth(len(s.Waiting) > 0))
	out <- gauge(alarmDesc, float64(len(s.Alarms)))
	optional(out, copyETADesc, s.CopyETA)
	collectCopy(out, s.Copy)
	collectStreams(out, s.Streams)
	collectShards(out, s.Shards)
	collectLookup(out, s.Lookup)
	if s.CDC != nil {
		collectCDC(out, *s.CDC)
	}
	out <- gauge(verifyRowsDesc, float64(s.Verify.Rows))
	out <- gauge(verifyDifferencesDesc, float64(s.Verify.Differences))
	out <- gauge(verifyTablesDesc, float64(len(s.Verify.Verified)))
	out <- gauge(verifyPacedDesc, truth(s.Verify.Paced != ""))
	if s.Verify.BytesTotal > 0 {
		out <- gauge(verifyBytesDesc, float64(s.Verify.Bytes))
		out <- gauge(verifySizeDesc, float64(s.Verify.BytesTotal))
	}
	optional(out, verifyETADesc, s.Verify.ETASeconds)
	optional(out, freezeDesc, s.Cutover.FreezeSeconds)
	out <- gauge(maxFreezeDesc, s.Cutover.MaxFreezeSeconds)
}

// states are all a move can be in; one of them is 1.
var states = []string{
	"created", "schema", "copying", "indexing", "streaming", "cutting_over", "switched", "rolling_back", "rolled_back",
	"completed", "cancelled",
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("pgreshard_"+name, help, labels, nil)
}

var (
	stateDesc  = desc("state", "1 for the state the move is in.", "state")
	layoutDesc = desc("layout_version", "Version of the layout that serves.")
	safeDesc   = desc("safe_to_cut_over", "1 where a cutover may be tried now.")

	failedDesc  = desc("failed", "1 once something has stopped the move: status says what.")
	waitingDesc = desc("waiting", "1 while the move cannot go on and tries again: a shard does not answer, or work was interrupted.")
	copyETADesc = desc("copy_eta_seconds", "In how long everything is copied at the present rate.")

	copyRowsDesc  = desc("copy_rows_total", "Rows copied.", "source", "table")
	copyBytesDesc = desc("copy_bytes_total", "Bytes of the table's file copied.", "source", "table")
	copySizeDesc  = desc("copy_size_bytes", "Bytes of the table's file.", "source", "table")

	lagBytesDesc   = desc("stream_lag_bytes", "Log written by the source that not every shard holds.", "source")
	lagSecondsDesc = desc("stream_lag_seconds", "Age of the oldest change that not every shard holds.", "source")
	rateDesc       = desc("stream_rows_per_second", "Rows written to all shards, over the last seconds.", "source")
	retainedDesc   = desc("slot_retained_bytes", "Log the slot holds back on the source.", "source")
	growthDesc     = desc("slot_retained_bytes_per_second", "By how much what the slot holds back grows.", "source")
	budgetDesc     = desc("slot_wal_budget_bytes", "Log the slot may hold back before it is dropped, or told of.", "source")
	lossDesc       = desc("slot_loss_seconds", "In how long the slot is lost if what it holds back goes on growing.", "source")
	alarmDesc      = desc("alarms", "What wants somebody's eye although the move goes on.")
	safeWALDesc    = desc("slot_safe_wal_size_bytes", "Log the source may write before the slot is lost.", "source")

	appliedDesc      = desc("applied_rows_total", "Rows applied by the stream.", "shard", "op")
	transactionsDesc = desc("applied_transactions_total", "Source transactions applied.", "shard")
	batchDesc        = desc("batch_size_rows", "Rows written in one destination transaction.", "shard")
	applyDesc        = desc("apply_duration_seconds", "Time to apply and commit one destination transaction.", "shard")
	zeroDesc         = desc("zero_row_changes_total", "Changes that found no row.", "shard")

	hitsDesc      = desc("lookup_cache_hits_total", "Keys whose translation was cached.")
	missesDesc    = desc("lookup_cache_misses_total", "Keys whose translation was not cached.")
	evictionsDesc = desc("lookup_cache_evictions_total", "Translations pushed out by the size bound.")
	cacheDesc     = desc("lookup_cache_bytes", "Bytes the cached translations take.")
	entriesDesc   = desc("lookup_cache_entries", "Cached translations.")
	queriesDesc   = desc("lookup_queries_total", "Lookup queries, failed and timed-out ones too.")
	queryDesc     = desc("lookup_query_duration_seconds", "Time of a lookup query, failed and timed-out ones too.")

	cdcConnectedDesc  = desc("cdc_connected", "1 while NATS, where changes are published, is connected.")
	cdcLagBytesDesc   = desc("cdc_lag_bytes", "Log written by the source that the stream has not acknowledged.", "source")
	cdcLagSecondsDesc = desc("cdc_lag_seconds", "Age of the oldest change that the stream has not acknowledged.", "source")
	cdcRetainedDesc   = desc("cdc_slot_retained_bytes", "Log that the slot changes are published by holds back.", "source")
	cdcBudgetDesc     = desc("cdc_slot_wal_budget_bytes", "Log that slot may hold back before it is dropped, or told of.", "source")
	cdcEventsDesc     = desc("cdc_events_total", "Events published, by op: c, u, d, r or t.", "source", "op")
	cdcBytesDesc      = desc("cdc_bytes_total", "Bytes of events published.", "source")

	verifyRowsDesc        = desc("verify_rows", "Rows compared by the last verification.")
	verifyTablesDesc      = desc("verify_tables", "Tables that the last comparison of everything has found equal so far.")
	verifyPacedDesc       = desc("verify_paced", "1 while a comparison gives way to load.")
	verifyBytesDesc       = desc("verify_bytes", "Bytes of the tables' files read by the comparison that runs.")
	verifySizeDesc        = desc("verify_size_bytes", "Bytes of the tables' files that it reads in all.")
	verifyETADesc         = desc("verify_eta_seconds", "In how long it has read them at the rate so far.")
	verifyDifferencesDesc = desc("verify_differences", "Differences the last verification found.")
	freezeDesc            = desc("freeze_seconds", "How long writes were refused by the last freeze.")
	maxFreezeDesc         = desc("max_freeze_seconds", "How long writes may be refused without the switch ([cutover] max_freeze).")
)

func collectCopy(out chan<- prometheus.Metric, list []move.CopyStatus) {
	for _, c := range list {
		source := strconv.Itoa(c.Source)
		out <- counter(copyRowsDesc, c.Rows, source, c.Table)
		out <- counter(copyBytesDesc, c.Bytes, source, c.Table)
		out <- gauge(copySizeDesc, float64(c.BytesTotal), source, c.Table)
	}
}

func collectStreams(out chan<- prometheus.Metric, list []move.StreamStatus) {
	for _, s := range list {
		source := strconv.Itoa(s.Source)
		optional(out, lagBytesDesc, s.LagBytes, source)
		optional(out, lagSecondsDesc, s.LagSeconds, source)
		optional(out, rateDesc, s.RowsPerSecond, source)
		optional(out, retainedDesc, s.Retained, source)
		optional(out, growthDesc, s.Growth, source)
		optional(out, safeWALDesc, s.SafeWAL, source)
		optional(out, budgetDesc, s.Budget, source)
		optional(out, lossDesc, s.LossSeconds, source)
	}
}

func collectShards(out chan<- prometheus.Metric, list []move.ShardStatus) {
	for _, s := range list {
		shard := strconv.Itoa(s.Shard)
		out <- counter(appliedDesc, s.Rows.Inserted, shard, "insert")
		out <- counter(appliedDesc, s.Rows.Updated, shard, "update")
		out <- counter(appliedDesc, s.Rows.Deleted, shard, "delete")
		out <- counter(transactionsDesc, s.Transactions, shard)
		out <- counter(zeroDesc, s.ZeroRowChanges, shard)
		out <- summary(batchDesc, s.Batches, float64(s.Rows.Inserted+s.Rows.Updated+s.Rows.Deleted), shard)
		out <- summary(applyDesc, s.Batches, s.ApplySeconds, shard)
	}
}

func collectLookup(out chan<- prometheus.Metric, l move.LookupStatus) {
	out <- counter(hitsDesc, l.Hits)
	out <- counter(missesDesc, l.Misses)
	out <- counter(evictionsDesc, l.Evictions)
	out <- counter(queriesDesc, l.Queries)
	out <- gauge(cacheDesc, float64(l.Bytes))
	out <- gauge(entriesDesc, float64(l.Entries))
	out <- summary(queryDesc, l.Queries, l.QuerySeconds)
}

// collectCDC tells of the shards whose changes are published now; those of the next layout wait.
func collectCDC(out chan<- prometheus.Metric, c move.CDCStatus) {
	out <- gauge(cdcConnectedDesc, truth(c.Connected))
	told := map[string]bool{}
	for _, t := range c.Shards {
		source := strconv.Itoa(t.Shard)
		if told[source] {
			continue
		}
		told[source] = true
		optional(out, cdcLagBytesDesc, t.LagBytes, source)
		optional(out, cdcLagSecondsDesc, t.LagSeconds, source)
		optional(out, cdcRetainedDesc, t.Retained, source)
		optional(out, cdcBudgetDesc, t.Budget, source)
		out <- counter(cdcBytesDesc, t.Bytes, source)
		for op, n := range t.Events {
			out <- counter(cdcEventsDesc, n, source, op)
		}
	}
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func counter(d *prometheus.Desc, value int64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
}

// summary has a count and a sum and no quantiles.
func summary(d *prometheus.Desc, count int64, sum float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstSummary(d, uint64(max(0, count)), sum, nil, labels...)
}

// optional sends a gauge where there is a value.
func optional[N int64 | float64](out chan<- prometheus.Metric, d *prometheus.Desc, value *N, labels ...string) {
	if value != nil {
		out <- gauge(d, float64(*value), labels...)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
