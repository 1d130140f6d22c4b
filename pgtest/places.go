package pgtest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// hashed are tables with a hash partition's declaration and no row, for satisfies_hash_partition.
const hashed = `create table of_bigint (k bigint) partition by hash (k); create table of_uuid (k uuid) partition by hash (k)`

// Places names shards by PostgreSQL's own declaration of hash partitions, without any code of the product.
type Places struct {
	mu    sync.Mutex
	conn  *pgx.Conn
	known map[string]int
}

// NewPlaces asks a database of its own.
func NewPlaces(t testing.TB) *Places {
	db := Shared(t).Database(t)
	db.Exec(t, hashed)
	return &Places{conn: db.Conn(t), known: map[string]int{}}
}

// Of is the shard of a key (bigint or uuid, as text) among a number of them.
func (p *Places) Of(ctx context.Context, typ, key string, shards int) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := fmt.Sprint(typ, key, "/", shards)
	if s, ok := p.known[id]; ok {
		return s, nil
	}
	var s int
	err := p.conn.QueryRow(ctx, fmt.Sprintf(`select r from generate_series(0, $1 - 1) r
		where satisfies_hash_partition('of_%[1]s'::regclass, $1, r, $2::text::%[1]s)`, typ), shards, key).Scan(&s)
	if err == nil {
		p.known[id] = s
	}
	return s, err
}
