package move_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"pgreshard/pgtest"
)

// benchUse is what one timed section used, of every process that took part. Beside the time it tells how much of a
// difference is waiting, and it changes less than time does while the machine has other work.
type benchUse struct {
	Source, Shards time.Duration // CPU time of the servers' processes
	Client         time.Duration // CPU time of our worker, or of psql
	Memory         int64         // bytes our worker had at most, while it lived
}

// servers is the CPU time the clusters have used so far, 0 where the system has no /proc.
func (b *bench) servers() benchUse {
	u := benchUse{Source: clusterTime(b.source)}
	for _, c := range b.shards {
		u.Shards += clusterTime(c)
	}
	return u
}

// since is what the servers have used between two readings.
func (u benchUse) since(before benchUse) benchUse {
	return benchUse{Source: u.Source - before.Source, Shards: u.Shards - before.Shards}
}

func clusterTime(c *pgtest.Cluster) time.Duration {
	text, _ := os.ReadFile(filepath.Join(c.DataDir, "postmaster.pid"))
	line, _, _ := strings.Cut(string(text), "\n")
	postmaster, _ := strconv.Atoi(line)
	for { // until no child ended meanwhile: its time would be missed, or counted twice
		p := readProcess(postmaster)
		used := p.own + p.reaped
		all, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, path := range all {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if child := readProcess(pid); child.parent == postmaster {
				used += child.own
			}
		}
		if readProcess(postmaster).reaped == p.reaped {
			return used
		}
	}
}

// processTimes are a process's CPU times: its own, and that of its children that have ended.
type processTimes struct {
	parent      int
	own, reaped time.Duration
}

func readProcess(pid int) (p processTimes) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, rest, ok := strings.Cut(string(text), ") ") // the name before it may hold anything
	fields := strings.Fields(rest)
	if err != nil || !ok || len(fields) < 15 {
		return p
	}
	ticks := func(n int) time.Duration {
		t, _ := strconv.ParseInt(fields[n], 10, 64)
		return time.Duration(t) * 10 * time.Millisecond // Linux counts in hundredths of a second there
	}
	p.parent, _ = strconv.Atoi(fields[1])
	p.own, p.reaped = ticks(11)+ticks(12), ticks(13)+ticks(14)
	return p
}
