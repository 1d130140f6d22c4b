package sink_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/pg"
)

// Shard 2 is slow, so that its queue is full and positions are kept for it. Shard 0 then comes to updates that no shard may go past
// before all have come there, and has so many of them before it that its own queue is full too. Once shard 2 goes on, so do all: what
// was kept for it reaches it although shard 0 takes nothing.
func TestAShardThatWaitsForAnotherDoesNotKeepItsPartFromIt(t *testing.T) {
	t.Parallel()
	const schema = `create table orders (id bigint primary key, tenant bigint, note int); create table events (tenant bigint, id bigint, primary key (tenant, id))`
	f := follow(t, 3, schema, "", rules{sharded: map[string]string{"orders": "tenant", "events": "tenant"}})
	first, slow := f.keyOn(0, 0), f.keyOn(2, 0)
	goOn, held := make(chan struct{}), make(chan struct{}, 1)
	f.stream.BeforeCommit(func(ctx context.Context, shard layout.Shard, _ pg.LSN) error {
		if shard != 2 {
			return nil
		}
		select {
		case held <- struct{}{}:
		default:
		}
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	f.run()
	f.exec(fmt.Sprintf(`insert into events values (%d, 1)`, slow))
	<-held
	f.exec(fmt.Sprintf(`insert into orders values (1, %d, 0)`, first))
	for id := range 12 { // each comes alone
		f.exec(fmt.Sprintf(`insert into events values (%d, %d)`, first, id))
		for len(f.shards[0].Query(t, `select from events where id = $1`, id)) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	for n := range 40 {
		f.exec(fmt.Sprintf(`update orders set note = %d`, n))
		time.Sleep(3 * time.Millisecond) // so that they come in as many blocks
	}
	close(goOn)
	f.catchUp()
	f.compare()
}
