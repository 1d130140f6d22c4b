package move_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/verify"
)

// Where keys are to be hidden, neither the error that stops a move, nor what is recorded of it, nor a comparison names one.
func TestKeysAreHiddenWhereTheConfigurationSaysSo(t *testing.T) {
	t.Parallel()
	const key = "id=123454321"
	s := newSmallMove(t, 2, "tenant", `create table users (id int primary key, tenant bigint not null); insert into users select g, g from generate_series(1, 20) g`)
	s.config.HideKeys = true
	worker := s.move()
	defer worker.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := worker.Migrate(ctx, move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) {
		for _, db := range s.shards {
			behindItsBack(t, db, `insert into users values (123454321, 1)`)
		}
		s.sources[0].Exec(t, `insert into users values (123454321, 1)`)
		<-ctx.Done()
		return false, ctx.Err()
	}})
	var row interface{ RowKey() string }
	if !errors.As(err, &row) || row.RowKey() != verify.HiddenKey("123454321") {
		t.Fatalf("it ended with %v", err)
	}
	status, statusErr := worker.Status(t.Context())
	report, verifyErr := worker.Verify(t.Context())
	if err := errors.Join(statusErr, verifyErr); err != nil {
		t.Fatal(err)
	}
	if status.Error == nil || !strings.Contains(*status.Error, "(key #") || strings.Contains(*status.Error, "123454321") {
		t.Errorf("the record says %v", *status.Error)
	}
	keys := report.Tables[0].Keys
	if len(keys) == 0 {
		t.Fatalf("nothing differs: %+v", report)
	}
	for _, k := range keys {
		if k.Key != verify.HiddenKey(key) && k.Key != verify.HiddenKey("tenant=1") {
			t.Errorf("a key is told as %q", k.Key)
		}
	}
}
