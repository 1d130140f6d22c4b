package sink_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A transaction of any size flows through a bounded queue: the heap does not hold it. (Not parallel: it is the heap of
// the process that is measured.)
func TestALargeTransactionIsNotHeldInMemory(t *testing.T) {
	f := follow(t, 2, `create table t (id int primary key, tenant bigint, a text); create table k (id int, tenant bigint, a text); alter table t replica identity full`, "",
		rules{sharded: map[string]string{"t": "tenant", "k": "tenant"}})
	f.queue = 24 << 20
	f.exec(`begin; insert into t select g, g, repeat('x', 100) from generate_series(1, 300000) g; update t set tenant = tenant + 1, a = repeat('y', 90) where id % 3 = 0; commit`)

	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var peak atomic.Uint64
	quit := make(chan struct{})
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak.Store(max(peak.Load(), now.HeapAlloc))
			select {
			case <-quit:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	f.run()
	f.catchUp()
	close(quit)
	<-measured
	f.compare()
	grown := (int64(peak.Load()) - int64(before.HeapAlloc)) >> 20
	t.Logf("the heap grew by %d MB", grown)
	if grown > 160 {
		t.Errorf("the heap grew by %d MB", grown)
	}
}
