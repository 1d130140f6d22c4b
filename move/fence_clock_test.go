package move

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// The clock of a source steps by 10 s within a freeze, forward and back. A write that was let through once the freeze had run out
// keeps it from being sealed, whatever the clock says then; a freeze nobody wrote into is sealed and lifted as any other.
func TestAClockThatStepsHidesNoWriteFromTheSeal(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	steps := func(seconds int) {
		t.Helper()
		db.Exec(t, fmt.Sprintf(`create or replace function pgreshard.fence_now() returns bigint language sql volatile set search_path = pg_catalog, pg_temp as
			$$ select (extract(epoch from clock_timestamp() + interval '%d s') * 1000000)::bigint $$`, seconds))
	}
	const write = `insert into public.plain select max(id) + 1, 'b' from public.plain`
	z := freezeFor(t, f, 5*time.Second)
	wantRefused(t, "in the freeze", try(t, db, write))
	steps(10)
	if err := try(t, db, write); err != nil {
		t.Errorf("after its end by the clock of the source: %v", err)
	}
	steps(0)
	if _, err := f.seal(t.Context(), fenceMoved, z.Value); !errors.Is(err, errFlag) {
		t.Errorf("sealing what was written into: %v", err)
	}
	if err := try(t, db, write); err != nil {
		t.Errorf("when the clock is back: %v", err)
	}

	z = freezeFor(t, f, 5*time.Second)
	steps(-10)
	wantRefused(t, "with the clock set back", try(t, db, write))
	if _, err := f.seal(t.Context(), fenceMoved, z.Value); err != nil {
		t.Errorf("sealing what nobody wrote into: %v", err)
	}
	wantRefused(t, "sealed", try(t, db, write))
	if err := f.lift(t.Context(), fenceSealed); err != nil {
		t.Error(err)
	}
	if err := try(t, db, write); err != nil {
		t.Errorf("lifted: %v", err)
	}
}
