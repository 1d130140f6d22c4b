package main

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"pgreshard/pg"
)

// checker gathers problems, so that all of them are told at once.
type checker struct{ problems []problem }

func (c *checker) add(key, what, hint string) {
	c.problems = append(c.problems, problem{key: key, what: what, hint: hint})
}

func (c *checker) must(ok bool, key, what, hint string) {
	if !ok {
		c.add(key, what, hint)
	}
}

// oneOf refuses a word that is not of the list; an empty one becomes the list's first, the default.
func (c *checker) oneOf(key string, value *string, words ...string) {
	if *value == "" {
		*value = words[0]
	}
	c.must(slices.Contains(words, *value), key, fmt.Sprintf("%q is not a choice", *value), strings.Join(words, ", "))
}

// emptyOr is oneOf for a value whose default is another's to fill in.
func (c *checker) emptyOr(key, value string, words ...string) {
	c.oneOf(key, &value, words...)
}

// check finds what is wrong in a decoded file without asking a server, and completes what follows from other keys.
func (c *Config) check() []problem {
	ck := &checker{}
	c.checkMove(ck)
	c.checkAddresses(ck)
	c.checkTables(ck)
	c.checkSharding(ck)
	c.checkCopyAndStream(ck)
	c.checkCutover(ck)
	c.checkService(ck)
	return ck.problems
}

var moveName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,39}$`)

func (c *Config) checkMove(ck *checker) {
	ck.must(moveName.MatchString(c.Move.Name), "move.name", fmt.Sprintf("%q cannot name slots and publications", c.Move.Name),
		"a lower-case letter, then up to 39 letters, digits, _ or -")
	c.checkCluster(ck, "source", c.Source)
	if c.CDC.Enabled && !c.moves() && c.Destination.Database == "" && c.Destination.Layout == 0 {
		return // publishing only
	}
	c.checkCluster(ck, "destination", c.Destination)
	if c.Source.Layout > 0 && c.Destination.Layout > 0 {
		ck.must(c.Destination.Layout == c.Source.Layout+1, "destination.layout",
			fmt.Sprintf("is %d, the source's is %d", c.Destination.Layout, c.Source.Layout),
			fmt.Sprintf("the next layout is one more: %d", c.Source.Layout+1))
	}
	ck.must(len(c.Source.Shards) < 2 || c.Source.Database == "" || c.Source.Database != c.Destination.Database,
		"destination.database", "is the source's name: rules could not say which layout they are for",
		"give the two databases different names here; the addresses may use any")
}

func (c *Config) checkCluster(ck *checker, key string, s clusterSection) {
	ck.must(s.Database != "", key+".database", "is missing", `database = "prod": the name rules refer to`)
	ck.must(s.Layout > 0, key+".layout", "is missing or below 1", "layout = 1 for a database that was never moved")
	ck.must(len(s.Shards) > 0, key+".shards", "there is no shard", "[["+key+".shards]] with url = …")
}

// checkAddresses resolves every address once, so that a missing variable or file is told before anything is done.
func (c *Config) checkAddresses(ck *checker) {
	seen := map[string]string{}
	for _, side := range []struct {
		name   string
		shards []shardSection
	}{{"source", c.Source.Shards}, {"destination", c.Destination.Shards}} {
		for i, s := range side.shards {
			key := fmt.Sprintf("%s.shards[%d].url", side.name, i)
			node := checkAddress(ck, key, s.URL)
			if first, twice := seen[node]; twice && node != "" {
				ck.add(key, "is the same database as "+first, "each shard is a database of its own")
			}
			seen[node] = key
			for j, r := range s.Replicas {
				key := fmt.Sprintf("%s.shards[%d].replicas[%d]", side.name, i, j)
				node := checkAddress(ck, key, r)
				ck.must(node == "" || pg.Address(pg.Shard{URL: r.expand}) != "", key, "names several nodes", "one address for each replica")
			}
		}
	}
	if c.NATS.URL != "" {
		_, err := c.NATS.URL.expand()
		ck.must(err == nil, "nats.url", fmt.Sprint(err), "set it where the program runs")
	}
}

// checkAddress returns what tells one database from another, as far as the address says it; empty where it is wrong.
func checkAddress(ck *checker, key string, a address) (node string) {
	if a == "" {
		ck.add(key, "is missing", `url = "postgres://user@host/database"`)
		return ""
	}
	if _, err := a.expand(); err != nil {
		ck.add(key, err.Error(), "set it where the program runs")
		return ""
	}
	resolved, err := pg.Config(pg.Shard{URL: a.expand}, pg.Reader, "pgreshard")
	if err != nil {
		ck.add(key, redact(strings.TrimPrefix(err.Error(), "address of shard 0 ")), `postgres://user@host/database or "host=… dbname=…"`)
		return ""
	}
	return fmt.Sprintf("%s:%d/%s", resolved.Host, resolved.Port, resolved.Database)
}

var skipForm = regexp.MustCompile(`^(fk|unique):.+$`)

func (c *Config) checkTables(ck *checker) {
	ck.oneOf("tables.replica_identity", &c.Tables.ReplicaIdentity, "keep", "full")
	checkPatterns(ck, "tables.include", c.Tables.Include)
	checkPatterns(ck, "tables.exclude", c.Tables.Exclude)
	for i, s := range c.Schema.Skip {
		ck.must(skipForm.MatchString(s), fmt.Sprintf("schema.skip[%d]", i), fmt.Sprintf("%q names no constraint", s),
			`"fk:name" or "unique:name"`)
	}
}

func checkPatterns(ck *checker, key string, patterns []string) {
	for i, p := range patterns {
		schema, table, ok := strings.Cut(p, ".")
		ck.must(ok && schema != "" && table != "", fmt.Sprintf("%s[%d]", key, i),
			fmt.Sprintf("%q is not schema.table", p), `"public.orders" or "public.audit_*"`)
	}
}

func (c *Config) checkCopyAndStream(ck *checker) {
	ck.must(c.General.LookupCacheSize > 0, "general.sharding_lookup_cache_size", "is 0", "67108864 is 64 MB")
	ck.must(c.General.LookupTimeout > 0, "general.sharding_lookup_timeout", "is not above 0", "milliseconds: 5000")
	ck.must(c.General.LookupAttempts > 0, "general.sharding_lookup_routing_attempts", "is not above 0", "3")
	ck.must(c.Copy.Workers > 0, "copy.workers", "is not above 0", "4 per source shard")
	ck.must(c.Copy.Sources >= 0, "copy.sources", "is negative", "0 copies all source shards at once")
	ck.oneOf("copy.format", &c.Copy.Format, "auto", "binary", "text")
	ck.must(c.Stream.BatchBytes > 0, "stream.batch_bytes", "is 0", "4MB")
	ck.oneOf("stream.confirm", &c.Stream.Confirm, "standby", "leader")
	ck.oneOf("stream.on_ddl", &c.Stream.OnDDL, "stop", "ignore", "exec")
	ck.oneOf("stream.on_wal_budget", &c.Stream.OnWALBudget, "stop", "alarm")
	ck.oneOf("sequences.policy", &c.Sequences.Policy, "stride", "copy", "none")
}

func (c *Config) checkCutover(ck *checker) {
	ck.must(c.Cutover.MaxFreeze > 0, "cutover.max_freeze", "is 0", "5s")
	ck.must(c.Cutover.LockTimeout > 0, "cutover.lock_timeout", "is 0", "500ms")
	ck.must(c.Cutover.MaxFreeze == 0 || c.Cutover.LockTimeout < c.Cutover.MaxFreeze, "cutover.lock_timeout",
		"is not below max_freeze: waiting for writers would use up the freeze", "500ms beside 5s")
	ck.must(c.Cutover.Attempts > 0, "cutover.attempts", "is not above 0", "10")
	ck.oneOf("cutover.on_blockers", &c.Cutover.OnBlockers, "undo", "terminate")
	hours, err := parseWindow(c.Cutover.Window)
	c.Cutover.Hours = hours
	ck.must(err == nil, "cutover.window", fmt.Sprint(err), `"02:00-04:00 Europe/Berlin"`)

	ck.must(c.Hooks.Timeout > 0, "hooks.timeout", "is 0", "30s")
	checkHook(ck, "hooks.before_freeze", c.Hooks.BeforeFreeze)
	checkHook(ck, "hooks.after_switch", c.Hooks.AfterSwitch)
	checkHook(ck, "hooks.after_undo", c.Hooks.AfterUndo)
}

func checkHook(ck *checker, key string, argv []string) {
	if len(argv) == 0 {
		return
	}
	ck.must(argv[0] != "", key, "names no program", `["/etc/pgreshard/pause-pool"]`)
	ck.must(len(argv) > 1 || !strings.Contains(argv[0], " "), key, "no shell splits a line into arguments",
		`one string per argument: ["/bin/sh", "-c", "…"]`)
}

var aggregateForm = regexp.MustCompile(`^(count|(count|sum|avg|min|max)\([^()]+\))$`)

func (c *Config) checkService(ck *checker) {
	ck.must(!c.CDC.Enabled || c.NATS.URL != "" || c.NATS.Embedded, "cdc.enabled", "there is no NATS to publish to", "[nats] url, or embedded = true")
	c.checkListen(ck)
	for i, s := range c.Checks {
		key := fmt.Sprintf("checks[%d]", i)
		ck.must(s.Table != "", key+".table", "is missing", `table = "orders"`)
		ck.must(len(s.Aggregates) > 0, key+".aggregates", "is empty", `aggregates = ["count", "sum(amount)"]`)
		for _, a := range s.Aggregates {
			ck.must(aggregateForm.MatchString(a), key+".aggregates", fmt.Sprintf("%q cannot be merged over shards", a),
				"count, sum(column), avg(column), min(column) or max(column)")
		}
		_, err := s.keys()
		ck.must(err == nil, key+".keys", fmt.Sprint(err), `keys = [42, "a"], or keys = [[42, "eu"]] where rows are placed by two columns`)
	}
}

func (c *Config) checkListen(ck *checker) {
	host, _, err := net.SplitHostPort(c.HTTP.Listen)
	if err != nil {
		ck.add("http.listen", fmt.Sprintf("%q is not host:port", c.HTTP.Listen), "127.0.0.1:7432")
		return
	}
	ck.must((c.HTTP.TLSCert == "") == (c.HTTP.TLSKey == ""), "http.tls_key", "tls_cert and tls_key go together", "give both")
	ck.must(loopback(host) || c.HTTP.Insecure || c.HTTP.TLSCert != "", "http.listen",
		"is reachable from other machines without TLS", "give tls_cert and tls_key, or insecure = true")
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
