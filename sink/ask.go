package sink

import (
	"context"
	"sync"

	"pgreshard/lookup"
	"pgreshard/pg"
)

// asker asks the shards for translations at the router's place in the stream, inside their open transactions: those
// hold everything before this row and nothing after it. A lookup's timeout is for its question, not for what the shard
// has to write before.
func (r *router) asker(ctx context.Context, t *Table) lookup.Asker {
	return lookup.AskerFunc(func(_ context.Context, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
		return r.ask(ctx, t, q, keys)
	})
}

// ask asks every shard where the mapping is sharded, and adds the answers up; else the shard whose checkpoint of this
// stream was the lowest at the start, because one that is ahead would answer from the future.
func (r *router) ask(ctx context.Context, t *Table, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
	shards := r.all
	if !t.AskAll {
		shards = []int{r.lowest()}
	}
	var mu sync.Mutex
	total := make([]lookup.Answer, len(keys))
	err := r.call(ctx, shards, func(ctx context.Context, a *applier) error {
		if q.Timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, q.Timeout)
			defer cancel()
		}
		answers, err := lookup.Ask(ctx, a.conn.PgConn(), q, keys)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		lookup.AddUp(total, answers)
		return nil
	})
	return total, err
}

// lowest is the shard to ask for what all have: the one whose checkpoint was lowest at the start, of those that are there
// and have not had the open transaction before.
func (r *router) lowest() int {
	low, lowHere := 0, -1
	for i, a := range r.appliers {
		if a.ahead < r.appliers[low].ahead {
			low = i
		}
		if !r.skip[i] && !a.absent.Load() && (lowHere < 0 || a.ahead < r.appliers[lowHere].ahead) {
			lowHere = i
		}
	}
	if lowHere >= 0 {
		return lowHere
	}
	return low
}

// settleBefore has every shard commit what came before the next transaction, where that may change or take away answers that
// rows were placed by and all shards are asked for. After a crash such a row is placed again, and a shard that is ahead then
// answers from later on: it must not be so far that its answer is another one. Rows that live with their mapping rows may go
// by what they find (apply), save where they have moved with them. next begins with what is routed next.
func (r *router) settleBefore(ctx context.Context, next []pg.Change) error {
	if !r.unsettled || next[0].Op != pg.OpBegin || !r.mayRemap(next) {
		return nil
	}
	r.unsettled = false
	return r.commitAll(ctx)
}

// mayRemap says whether a transaction, of which more may come with the next block, changes what all shards are asked for.
func (r *router) mayRemap(changes []pg.Change) bool {
	for i := range changes {
		c := &changes[i]
		switch c.Op {
		case pg.OpCommit:
			return false
		case pg.OpTruncate:
			for _, t := range r.tables(heldChange{truncate: c.Truncate}) {
				if r.feedsAsked(t) {
					return true
				}
			}
		case pg.OpUpdate, pg.OpDelete:
			b, err := r.binding(c.Relation, changes[0].Tx.Commit)
			if err != nil || b == nil || !r.feedsAsked(b.table) { // change will meet the error
				continue
			}
			if old := b.old(c); c.Op == pg.OpDelete || !b.table.guardKnown(old) || b.table.guardChanged(old, b.row(c.New)) {
				return true
			}
		}
	}
	return true
}

// feedsAsked says that all shards are asked for what a table's rows tell.
func (r *router) feedsAsked(t *Table) bool {
	for _, f := range t.Feeds {
		for _, of := range r.fedBy(f.Query) {
			if of.AskAll {
				return true
			}
		}
	}
	return false
}
