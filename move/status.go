package move

import (
	"encoding/json"
	"time"
)

// Status is what a move can say about itself at one moment: what /status serves and `status --json` prints. It is a
// copy, never changed after it was handed out. What has not been measured, a lag or a rate, is nil, never 0.
type Status struct {
	Move   string       `json:"move"`
	State  string       `json:"state"` // one of the states of the README: created, schema, copying, …
	Layout StatusLayout `json:"layout"`
	Error  *string      `json:"error"` // what stopped the move, nil while nothing has
	// Waiting is what keeps the move from going on while it tries again by itself: shards that do not answer, else
	// interrupted work.
	Waiting []string `json:"waiting"`
	// Alarms are what wants somebody's eye although the move goes on: a slot that keeps much log.
	Alarms        []string       `json:"alarms"`
	SafeToCutOver SafeToCutOver  `json:"safe_to_cut_over"`
	Copy          []CopyStatus   `json:"copy"`
	CopyETA       *float64       `json:"copy_eta_seconds"` // until all of them are copied
	Streams       []StreamStatus `json:"streams"`
	Shards        []ShardStatus  `json:"shards"`
	Lookup        LookupStatus   `json:"lookup"`
	Verify        VerifyStatus   `json:"verify"`
	Cutover       CutoverStatus  `json:"cutover"`
	CDC           *CDCStatus     `json:"cdc,omitempty"`     // where changes are published
	Reverse       *ReverseStatus `json:"reverse,omitempty"` // after the switch, while the old layout is to follow
	Worker        string         `json:"worker,omitempty"`  // who holds the lease, in words; empty: nobody, or who answers
	Idle          bool           `json:"idle,omitempty"`    // no worker runs
	Fences        []FenceStatus  `json:"fences,omitempty"`  // of the sources that have one, as read by who is no worker
	Address       string         `json:"address,omitempty"` // where that worker listens
}

// StatusLayout names the layout that serves and the one the move leads to.
type StatusLayout struct {
	Serving int `json:"serving"`
	Next    int `json:"next"`
}

// SafeToCutOver says whether a cutover may be tried now, and every reason why not.
type SafeToCutOver struct {
	OK      bool     `json:"ok"`
	Because []string `json:"because"`
}

// CopyStatus is how far one source's table is copied. Bytes are of the table's file on the source. ETASeconds is known
// while the table is being copied.
type CopyStatus struct {
	Source     int      `json:"source"`
	Table      string   `json:"table"`
	Rows       int64    `json:"rows"`
	Bytes      int64    `json:"bytes"`
	BytesTotal int64    `json:"bytes_total"`
	State      string   `json:"state"` // waiting, copying or done
	ETASeconds *float64 `json:"eta_seconds"`
}

// StreamStatus is how far the stream of one source is. Positions are in PostgreSQL's text form. LagBytes is the log
// between what the source has written and what every shard holds; LagSeconds the age of that; ETASeconds in how long
// there will be none if it goes on shrinking as it does. RowsPerSecond counts rows written to all shards. Before the
// stream begins only what its slot says is known.
type StreamStatus struct {
	Source        int      `json:"source"`
	Received      string   `json:"received"`
	Applied       string   `json:"applied"`
	Confirmed     string   `json:"confirmed"`
	LagBytes      *int64   `json:"lag_bytes"`
	LagSeconds    *float64 `json:"lag_seconds"`
	RowsPerSecond *float64 `json:"rows_per_second"`
	ETASeconds    *float64 `json:"eta_seconds"`
	// Retained is the log the slot holds back, Growth by how much that grows in a second, and SafeWAL what the server
	// still lets be written before it drops the slot, in bytes; nil where the server does not say, or it is not known yet.
	// Budget is what the slot may hold back, and LossSeconds in how long it is lost, to the one or the other, if it goes on
	// growing; nil where it does not, and where nothing bounds it.
	Retained    *int64   `json:"retained_bytes"`
	Growth      *float64 `json:"retained_bytes_per_second"`
	SafeWAL     *int64   `json:"safe_wal_size"`
	Budget      *int64   `json:"wal_budget"`
	LossSeconds *float64 `json:"loss_seconds"`
	// LagHistory is LagSeconds of the last six minutes, one every three seconds, below 0 where it was not known.
	LagHistory []float64 `json:"lag_history,omitempty"`
}

// ShardStatus is what the stream has done to one destination shard since the worker started.
type ShardStatus struct {
	Shard          int       `json:"shard"`
	Node           string    `json:"node"` // host:port of the primary, empty while none is known
	Rows           RowCounts `json:"rows"`
	ZeroRowChanges int64     `json:"zero_row_changes"`
	Transactions   int64     `json:"transactions"` // source transactions applied
	Batches        int64     `json:"batches"`      // destination transactions committed
	ApplySeconds   float64   `json:"apply_seconds"`
}

// FenceStatus is what a source's fence does: writes pass, are refused until a moment of that server's clock, or, where it
// names none, for good.
type FenceStatus struct {
	Source  int        `json:"source"`
	Refuses bool       `json:"refuses"`
	Until   *time.Time `json:"until,omitempty"`
}

// RowCounts counts applied rows by what was done with them.
type RowCounts struct {
	Inserted int64 `json:"inserted"`
	Updated  int64 `json:"updated"`
	Deleted  int64 `json:"deleted"`
}

// LookupStatus is the translation cache's state; all but Bytes and Entries count since the worker started. Queries
// and QuerySeconds include the failed ones; Evictions only what the bound pushed out.
type LookupStatus struct {
	Hits         int64   `json:"hits"`
	Misses       int64   `json:"misses"`
	Queries      int64   `json:"queries"`
	Bytes        int64   `json:"bytes"`
	Entries      int64   `json:"entries"`
	Evictions    int64   `json:"evictions"`
	QuerySeconds float64 `json:"query_seconds"`
}

// VerifyStatus is the outcome of the last verification, also while another one runs. At holds one source position a shard of the source.
type VerifyStatus struct {
	State       string     `json:"state"` // none, running, clean or different
	At          []string   `json:"at"`
	Finished    *time.Time `json:"finished"`
	Differences int64      `json:"differences"`
	Rows        int64      `json:"rows"`              // compared
	Changed     int64      `json:"changed,omitempty"` // of them, those compared once more by their keys, since they had changed
	Whole       []string   `json:"whole,omitempty"`   // tables that a freeze compared whole, and why
	Tables      []string   `json:"tables,omitempty"`  // in which differences were found
	// Verified are the tables that the last comparison of everything has found equal, of TablesTotal; Interrupted says that it was not
	// brought to its end, so that the next one goes on with it.
	Verified    []TableVerified `json:"verified,omitempty"`
	TablesTotal int             `json:"tables_total,omitempty"`
	Interrupted bool            `json:"interrupted,omitempty"`
	// Bytes of BytesTotal, of the tables' files on the sources, are read by the comparison that runs, and ETASeconds is in how long all are, nil where
	// that is not known yet; Paced is what it gives way to, empty while it reads.
	Bytes      int64    `json:"bytes,omitempty"`
	BytesTotal int64    `json:"bytes_total,omitempty"`
	ETASeconds *float64 `json:"eta_seconds,omitempty"`
	Paced      string   `json:"paced,omitempty"`
}

// differs says that the last comparison that came to its end found something.
func (v VerifyStatus) differs() bool { return v.State == "different" || v.Differences > 0 }

// CutoverStatus is where a cutover stands; Step is empty while none is tried. FreezeSeconds is the last freeze, from
// the first request of the lock to the last shard opened (or, undone, to the source serving again).
type CutoverStatus struct {
	Step          string   `json:"step"`
	FreezeSeconds *float64 `json:"freeze_seconds"`
	// MaxFreezeSeconds is [cutover] max_freeze.
	MaxFreezeSeconds float64 `json:"max_freeze_seconds"`
	// Steps are those done of the cutover that runs, or ran last in this worker.
	Steps []StepReport `json:"steps,omitempty"`
	// Hooks are the last run of each hook by this worker, the latest first.
	Hooks []HookStatus `json:"hooks,omitempty"`
}

// MarshalJSON writes an empty list where there is none, so that a reader never meets null in a list's place.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status
	p := plain(s)
	p.SafeToCutOver.Because, p.Waiting, p.Alarms = filled(p.SafeToCutOver.Because), filled(p.Waiting), filled(p.Alarms)
	p.Copy, p.Streams, p.Shards = filled(p.Copy), filled(p.Streams), filled(p.Shards)
	p.Verify.At = filled(p.Verify.At)
	if p.Reverse != nil {
		r := *p.Reverse
		r.Streams, r.Rollback.Because = filled(r.Streams), filled(r.Rollback.Because)
		p.Reverse = &r
	}
	return json.Marshal(p)
}

func filled[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// ReverseStatus is how the old layout follows the new one after the switch.
type ReverseStatus struct {
	// Streams has one for each destination shard, whose number is its Source.
	Streams []StreamStatus `json:"streams"`
	// Rollback says whether a rollback may be tried now, which then loses nothing.
	Rollback SafeToCutOver `json:"rollback"`
	// Lost says why there is no way back any more, empty while there is one.
	Lost string `json:"lost"`
	// Written is about how many rows were inserted, updated and deleted on the shards since the switch, as their statistics have it; null
	// while there is a way back, or where they do not tell.
	Written *int64 `json:"rows_written_since_switch"`
}
