package move

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgreshard/pgtest"
)

func TestWhoMayNotSeeOthersTransactionsIsToldSoAndSeesNoEmptyList(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t, pgtest.Options{}).Database(t)
	db.Exec(t, `create role mover login; create table t (a int)`)
	writer, err := db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Exec(t.Context(), `insert into t values (1)`); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), strings.Replace(db.URL(), "postgres@", "mover@", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if all, err := blockers(t.Context(), conn, 0); !errors.Is(err, errBlind) {
		t.Errorf("without the right: %v, %v", all, err)
	}
	db.Exec(t, `grant pg_monitor to mover`)
	if all, err := blockers(t.Context(), conn, 0); err != nil || len(all) != 1 || all[0].Statement != "insert into t values (?)" {
		t.Errorf("with the right: %v, %v", all, err)
	}
}
