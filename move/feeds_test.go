package move

import (
	"fmt"
	"testing"
)

func TestWhatAQuerysWordsTell(t *testing.T) {
	for sql, want := range map[string]string{
		"SELECT tenant FROM orders WHERE id = $1":                                                     "{true [orders]  id}",
		"select coalesce(parent, id) from public.tenants t where t.id = $1::bigint;":                  "{true [tenants] tenants id}",
		"select t.region from orders o join tenants as t on t.id = o.tenant where o.id = $1":          "{true [orders tenants] orders id}",
		"select t.region from orders o, tenants t where t.id = o.tenant and o.id = $1 and not t.gone": "{true [orders tenants] orders id}",
		"select a.k from m a join m b on b.id = a.parent where a.id = $1":                             "{true [m m] m id}",
		"select k from m where id + 1 = $1":                                                           "{true [m]  }",
		"select k from m where lower(name) = $1":                                                      "{true [m]  }",
		"select k from m where id = $1 or alias = $1":                                                 "{false []  }",
		"select k from m where id = $1 and id2 = $1":                                                  "{true [m]  }",
		"select coalesce((select parent from m where id = $1), $1)":                                   "{false []  }",
		"select max(k) from m where id = $1":                                                          "{false []  }",
		"select k from m left join n on n.id = m.n where m.id = $1":                                   "{false []  }",
		"select k from m where id = $1 order by k limit 1":                                            "{false []  }",
		"select k from m where id = $1 -- or not":                                                     "{false []  }",
		`select k from "M" where id = $1`:                                                             "{false []  }",
		"select k from m where name = 'x' and id = $1":                                                "{false []  }",
		"select case when big then $1 else k end from m where id = $1":                                "{true [m]  }",
		"with x as (select 1) select k from m where id = $1":                                          "{false []  }",
		"select m.k from n join m on m.id = $1 and n.id = m.n":                                        "{true [n m] m id}",
		"select k from m where other.id = $1":                                                         "{true [m]  }",
	} {
		if got := fmt.Sprint(readQuery(sql)); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
}

func TestAQueryTurnedRound(t *testing.T) {
	for sql, want := range map[string]string{
		"select t.region from orders o join tenants as t on t.id = o.tenant where o.id = $1;":       `select json_agg(distinct format('%s', o.id)) from orders o join tenants as t on t.id = o.tenant where t."id" = $1`,
		"select region from orders, tenants where id = tenant and number = $1::bigint and not gone": `select json_agg(distinct format('%s', number)) from orders, tenants where id = tenant and tenants."id" = $1 and not gone`,
		"select t.region from tenants t join orders on orders.id = $1 and t.id = orders.tenant":     `select json_agg(distinct format('%s', orders.id)) from tenants t join orders on t."id" = $1 and t.id = orders.tenant`,
		"select a.region from tenants a join tenants b on a.id = b.parent where b.id = $1":          "", // a row may stand for either
	} {
		if got := reachQuery(sql, "tenants", "id"); got != want {
			t.Errorf("%s\n  %s, want\n  %s", sql, got, want)
		}
	}
}

func TestAQueryForManyKeys(t *testing.T) {
	for sql, want := range map[string]string{
		"SELECT COALESCE(parent, id) FROM public.tenants WHERE id = $1;":                                             `select format('%s', id), COALESCE(parent, id) FROM public.tenants WHERE id = any($1)`,
		"select t.region\nfrom orders o join tenants as t on t.id = o.tenant where o.id = $1::bigint and not o.gone": "select format('%s', o.id), t.region from orders o join tenants as t on t.id = o.tenant where o.id = any($1) and not o.gone",
	} {
		if got := manyQuery(sql); got != want {
			t.Errorf("%s\n  %s, want\n  %s", sql, got, want)
		}
	}
}
