package sink_test

import (
	"context"
	"testing"

	"pgreshard/pg"
	"pgreshard/replicator"
)

// blocks reads the log from the start until it has brought n transactions, each in blocks of its own.
func (f *following) blocks(n int) (all [][]*pg.Block) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	reader := replicator.New(replicator.Config{Shard: f.source.Shard(0), Slot: f.source.Name, Publication: "p", Start: f.start})
	ended := make(chan struct{})
	go func() { _ = reader.Run(ctx); close(ended) }()
	var changes []pg.Change
	for len(all) < n {
		for _, c := range (<-reader.Blocks()).Changes {
			changes = append(changes, c)
			if c.Op == pg.OpCommit {
				if len(changes) > 2 { // servers up to 14 send empty ones
					all = append(all, []*pg.Block{{Changes: changes}})
				}
				changes = nil
			}
		}
	}
	cancel()
	for range reader.Blocks() {
	}
	<-ended
	return all
}

// apply runs the stream over blocks until they are committed.
func (f *following) apply(list ...[]*pg.Block) {
	f.t.Helper()
	blocks := make(chan *pg.Block, 8)
	for _, of := range list {
		for _, b := range of {
			blocks <- b
		}
	}
	close(blocks)
	if err := f.stream.Run(f.t.Context(), blocks, func(*pg.Block) {}); err != nil {
		f.t.Fatal(err)
	}
}

// commitAt gives a transaction another commit position, and tells where it ends.
func commitAt(blocks []*pg.Block, at pg.LSN) (end pg.LSN) {
	changes := blocks[0].Changes
	for i := range changes {
		tx := *changes[i].Tx
		tx.Commit = at
		changes[i].Tx, end = &tx, tx.End
	}
	return end
}

// The log may have a transaction that commits exactly where the checkpoint is: at the slot's consistent point, or where the
// one before it ended. Neither is in what the shard holds, and each is applied, once.
func TestTransactionsThatCommitWhereTheCheckpointIs(t *testing.T) {
	t.Parallel()
	f := follow(t, 1, `create table t (id int primary key)`, "", rules{sharded: map[string]string{"t": "id"}})
	f.exec(`insert into t values (1)`)
	f.exec(`insert into t values (2)`)
	list := f.blocks(2)
	end := commitAt(list[0], f.start)
	commitAt(list[1], end)
	f.apply(list[0])
	if at, err := f.position(t.Context(), f.shards[0]); err != nil || at != end {
		t.Fatalf("the checkpoint is %s, %v", at, err)
	}
	f.takeOver()
	f.apply(list...)
	f.takeOver()
	f.apply(list...)
	f.compare()
}
