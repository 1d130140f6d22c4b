package layout

import (
	"fmt"

	"pgreshard/pg"
)

// hashQuery asks a server for its seeded 64-bit hash of a key of the column's type: the hash of a record of one column is
// that column's (hash_record_extended, src/backend/utils/adt/rowtypes.c), found by the type's default hash operator class as
// hash partitioning finds it, under the column's collation. A type without one is an error even for NULL.
func hashQuery(column pg.Column) string {
	collate := ""
	if !column.Deterministic {
		collate = " collate " + column.Collation
	}
	return fmt.Sprintf("select pg_catalog.hash_record_extended(row($1::%s%s), %d)", column.Base, collate, int64(partitionSeed))
}
