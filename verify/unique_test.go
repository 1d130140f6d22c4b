package verify

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgreshard/pgtest"
)

// What is found across shards is what one table of all rows has twice, as plain SQL says it, whatever the values' forms.
func TestValuesThatMoreThanOneShardHasAreFound(t *testing.T) {
	t.Parallel()
	const ddl = `create table people (k int, id int primary key, email text, n numeric, paid money)`
	b := setUp(t, 1, 3, ddl) // the source stands for the table of all rows
	table := catalog(t, b.shards[0]).Tables[0]
	uniques := []struct {
		Unique
		by, where string
	}{
		{Unique{Name: "email", Columns: []UniqueColumn{{SQL: "email", Type: "text", Collate: ` collate "pg_catalog"."default"`}}}, "email", "email is not null"},
		{Unique{Name: "lower", Columns: []UniqueColumn{{SQL: "lower(email)", Type: "text"}}, Where: "k > 1"}, "lower(email)", "email is not null and k > 1"},
		{Unique{Name: "number", Columns: []UniqueColumn{{SQL: "n", Type: "numeric"}}}, "n", "n is not null"},
		{Unique{Name: "both", Columns: []UniqueColumn{{SQL: "email", Type: "text"}, {SQL: "n", Type: "numeric"}}}, "email, n", "email is not null and n is not null"},
		{Unique{Name: "both or none", Columns: []UniqueColumn{{SQL: "email", Type: "text"}, {SQL: "n", Type: "numeric"}}, NullsEqual: true}, "email, n", "true"},
		{Unique{Name: "a type without hash", Columns: []UniqueColumn{{SQL: "paid", Type: "money"}}}, "paid", "paid is not null"},
	}
	for _, seed := range pgtest.Seeds(t, "UNIQUE_SEED", 3) {
		t.Logf("UNIQUE_SEED=%d", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		var rows [4][]string
		for id := range 150 {
			null := func(text string) string {
				if r.IntN(4) == 0 {
					return "null"
				}
				return text
			}
			row := fmt.Sprintf("(%d, %d, %s, %s, %s)", r.IntN(3), id, null(fmt.Sprintf("'%c%d@X'", "aAbB"[r.IntN(4)], r.IntN(12))),
				null(fmt.Sprintf("%d.%s", r.IntN(12), "000"[:1+r.IntN(3)])), null(fmt.Sprintf("'%d'", r.IntN(200))))
			rows[0] = append(rows[0], row)
			shard := 1 + r.IntN(3)
			rows[shard] = append(rows[shard], row)
		}
		for i, db := range append(b.sources, b.shards...) {
			db.Exec(t, `truncate people; insert into people values `+strings.Join(rows[i], ", "))
		}
		report := &TableReport{}
		request := b.request(t)
		request.Limit = 1000
		var list []Unique
		for _, u := range uniques {
			u.Table, u.Key = table, []string{"id"}
			list = append(list, u.Unique)
		}
		if err := report.AddUniques(t.Context(), request, list); err != nil {
			t.Fatal(err)
		}
		found := map[string][]string{}
		for _, c := range report.Conflicts {
			var ids []string
			for _, row := range c.Rows {
				id, _ := strings.CutPrefix(row.Key, "id=")
				ids = append(ids, id)
				if got := b.shards[row.Shard].Query(t, `select count(*) from people where id = $1::int`, id); got[0][0] != "1" {
					t.Errorf("%s: id %s is not on shard %d", c.Constraint, id, row.Shard)
				}
			}
			slices.Sort(ids)
			found[c.Constraint] = append(found[c.Constraint], strings.Join(ids, ","))
		}
		total := int64(0)
		for _, u := range uniques {
			var want []string
			for _, row := range b.sources[0].Query(t, fmt.Sprintf(`select string_agg(id::text, ',' order by id::text collate "C") from people where %s group by %s having count(*) > 1`, u.where, u.by)) {
				want = append(want, row[0])
			}
			slices.Sort(want)
			slices.Sort(found[u.Name])
			if len(want) == 0 || !slices.Equal(found[u.Name], want) {
				t.Errorf("%s: %v, want %v", u.Name, found[u.Name], want)
			}
			total += int64(len(want))
		}
		if report.NotUnique != total || report.State != Differs || report.AtLeast {
			t.Errorf("%d of %d, %s", report.NotUnique, total, report.State)
		}

		bounded := &TableReport{}
		request.Limit = 2
		if err := bounded.AddUniques(t.Context(), request, list[:1]); err != nil || bounded.NotUnique != 2 || len(bounded.Conflicts) != 2 || !bounded.AtLeast {
			t.Errorf("bounded: %+v, %v", bounded, err)
		}
	}
}

// A shard that does not answer leaves nothing proved.
func TestAShardThatDoesNotAnswerForItsUniqueValuesIsNamed(t *testing.T) {
	t.Parallel()
	b := setUp(t, 0, 2, `create table people (id int primary key, email text)`)
	table := catalog(t, b.shards[0]).Tables[0]
	b.shards[1].Exec(t, `alter table people drop email`)
	r := Request{Shards: []Node{NodeOf(b.shards[0].Shard(0)), NodeOf(b.shards[1].Shard(1))}}
	report := &TableReport{}
	err := report.AddUniques(t.Context(), r, []Unique{{Name: "email", Table: table, Key: []string{"id"}, Columns: []UniqueColumn{{SQL: "email", Type: "text"}}}})
	if err == nil || report.State != Partial || len(report.Failures) != 1 || report.Failures[0].Number != 1 || report.Failures[0].Reason != "error" {
		t.Errorf("%v, %+v", err, report)
	}
}
