package move_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// benchPart is one of the benchmark's tables: our times and those of every peer.
type benchPart struct {
	title string
	ours  benchTimes
	peers []*benchTimes
}

// benchTimes are one side's times, in the order they were measured.
type benchTimes struct {
	name   string
	times  []time.Duration
	use    []benchUse
	before []time.Duration // from the command to where the clock starts
}

func (p *benchPart) peer(name string) *benchTimes {
	t := &benchTimes{name: name}
	p.peers = append(p.peers, t)
	return t
}

func (t *benchTimes) add(d time.Duration, use benchUse) {
	t.times, t.use = append(t.times, d), append(t.use, use)
}

func (t *benchTimes) last() time.Duration { return t.times[len(t.times)-1] }

// row is the table's cells about one side.
func (t *benchTimes) row() string {
	var source, shards, client []time.Duration
	for _, u := range t.use {
		source, shards, client = append(source, u.Source), append(shards, u.Shards), append(client, u.Client)
	}
	return fmt.Sprintf("%s | %s – %s | %.2f + %.2f + %s", seconds(median(t.times)), seconds(slices.Min(t.times)), seconds(slices.Max(t.times)),
		median(source).Seconds(), median(shards).Seconds(), seconds(median(client)))
}

func (t *benchTimes) memory() (most int64) {
	for _, u := range t.use {
		most = max(most, u.Memory)
	}
	return most
}

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// benchReport is everything docs/performance.md says about one run.
type benchReport struct {
	options          benchOptions
	machine          string
	server, settings string
	parts            []benchPart
}

func (r benchReport) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, PostgreSQL %s, %s. Each side ran %d times, in turn; the times are medians, with the least and the most.\n",
		time.Now().Format(time.DateOnly), r.machine, r.server, runtime.Version(), r.options.Runs)
	for _, p := range r.parts {
		fmt.Fprintf(&b, "\n### %s\n\n| | median | least – most | CPU time, source + shards + client | pgreshard is … times as fast |\n|---|---|---|---|---|\n", p.title)
		fmt.Fprintf(&b, "| pgreshard | %s | |\n", p.ours.row())
		for _, peer := range p.peers {
			fmt.Fprintf(&b, "| %s | %s | **%.2f** |\n", peer.name, peer.row(), median(peer.times).Seconds()/median(p.ours.times).Seconds())
		}
		fmt.Fprintf(&b, "\nOur worker had at most %d MB of memory.", p.ours.memory()>>20)
		if p.ours.before != nil {
			fmt.Fprintf(&b, " Before the clock: %s for ours (a new process that reads the catalogs, takes the lease, arms the source, and connects), %s for native.",
				seconds(median(p.ours.before)), seconds(median(p.peers[0].before)))
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\nSettings, the same clusters serving every side: %s. Ours: %d copy workers, batches of 4 MB, synchronous_commit on. "+
		"Subscriptions: one for each shard, `%s`, synchronous_commit off (its default).\n", r.settings, r.options.Workers, benchSubscription)
	return b.String()
}

const benchBegin, benchEnd = "<!-- bench:begin -->", "<!-- bench:end -->"

// write puts the figures between the markers of a document.
func (r benchReport) write(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err = between(text, r.markdown())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, text, 0o644)
}

func between(doc []byte, section string) ([]byte, error) {
	before, rest, ok := strings.Cut(string(doc), benchBegin)
	_, after, closed := strings.Cut(rest, benchEnd)
	if !ok || !closed {
		return nil, fmt.Errorf("the markers %s and %s are not there", benchBegin, benchEnd)
	}
	return []byte(before + benchBegin + "\n" + section + benchEnd + after), nil
}

func TestTheFiguresGoBetweenTheMarkersAndNowhereElse(t *testing.T) {
	t.Parallel()
	doc := "intro\n" + benchBegin + "\nold\n" + benchEnd + "\nend\n"
	got, err := between([]byte(doc), "new\n")
	if want := strings.Replace(doc, "old", "new", 1); err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	for _, doc := range []string{"", benchBegin, benchEnd + benchBegin} {
		if _, err := between([]byte(doc), "new"); err == nil {
			t.Errorf("%q was taken", doc)
		}
	}
}

// benchMachine describes where this runs, without its name; what the system does not tell is left out.
func benchMachine() string {
	out := fmt.Sprintf("%d cores", runtime.NumCPU())
	if model := procLine("/proc/cpuinfo", "model name"); model != "" {
		out += " (" + model + ")"
	}
	if kb, err := strconv.Atoi(strings.TrimSuffix(procLine("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		out += fmt.Sprintf(", %d GB of memory", (kb+1<<19)>>20)
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ := strings.Cut(string(text), " ")
		out += ", load before " + load
	}
	return out
}

func procLine(path, name string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

const benchSettingsShown = `select string_agg(format('%s = %s', name, current_setting(name)), ', ' order by name) from pg_settings where name in (
	'fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'min_wal_size', 'max_wal_size', 'checkpoint_timeout', 'autovacuum',
	'wal_level', 'wal_compression', 'logical_decoding_work_mem', 'max_sync_workers_per_subscription', 'max_logical_replication_workers')`

func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
