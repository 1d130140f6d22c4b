package move_test

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"

	"pgreshard/move"
	"pgreshard/verify"
)

// proven looks at what a completed move shows for itself. Its sources are as they were at the switch.
func (r *rig) proven(m *move.Move) *move.Evidence {
	t := r.t
	t.Helper()
	e, err := m.Evidence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	for _, s := range e.Steps {
		steps = append(steps, s.Step)
	}
	if want := []string{"arm", "check", "freeze", "drain", "finish", "verify", "seal", "switch", "open"}; !slices.Equal(steps, want) || e.Switched == nil ||
		e.FreezeSeconds == nil || *e.FreezeSeconds <= 0 || e.State != move.StateCompleted || e.Layout.Serving != 2 {
		t.Errorf("%+v", e)
	}
	if len(e.At) != len(r.sources) || e.Unread != "" || len(e.Tables) == 0 {
		t.Errorf("read as of %v: %d tables, %s", e.At, len(e.Tables), e.Unread)
	}
	for _, table := range e.Tables {
		var there int64
		for n, db := range r.sources {
			rows, _ := strconv.ParseInt(db.Query(t, fmt.Sprintf(`select count(*) from %s`, table.Table))[0][0], 10, 64)
			if there += rows; table.Sources[n].Rows != rows {
				t.Errorf("%s: source %d has %d rows, the report says %d", table.Table, n, rows, table.Sources[n].Rows)
			}
		}
		rows, hash := addUp(table.Shards)
		if wantRows, want := addUp(table.Sources); !table.Omni && (rows != wantRows || rows != there || hash != want) {
			t.Errorf("%s: %d rows and %s, its sources %d and %s", table.Table, rows, hash, wantRows, want)
		}
		for _, one := range table.Shards {
			if first := table.Sources[0]; table.Omni && (one.Rows != first.Rows || one.Hash != first.Hash) {
				t.Errorf("%s: %+v, the source has %+v", table.Table, one, first)
			}
		}
		if !table.Equal || len(table.Shards) != len(r.shards) || there == 0 && table.Table != "public.notes" {
			t.Errorf("%+v", table)
		}
	}
	return e
}

// addUp adds a table's nodes up as a reader of the report may.
func addUp(nodes []verify.NodeTotal) (rows int64, hash string) {
	word := new(big.Int).Lsh(big.NewInt(1), 64)
	a, b := new(big.Int), new(big.Int)
	for _, n := range nodes {
		first, _ := new(big.Int).SetString(n.Hash[:16], 16)
		second, _ := new(big.Int).SetString(n.Hash[16:], 16)
		rows += n.Rows
		a.Add(a, first).Mod(a, word)
		b.Add(b, second).Mod(b, word)
	}
	return rows, fmt.Sprintf("%016x%016x", a, b)
}
