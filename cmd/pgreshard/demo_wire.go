package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"pgreshard/pgtest"
)

// wire is a relay before each of the demo's servers, through which the worker reaches it; the writers do not pass there.
type wire struct {
	print bool          // every message, to stderr
	delay time.Duration // of every byte, each way
	names []string
	links []*pgtest.Relay
}

// join has the worker reach a database through a relay, where any is wanted.
func (w *wire) join(db *pgtest.DB, to io.Writer) (*pgtest.DB, error) {
	if !w.print && w.delay == 0 {
		return db, nil
	}
	r, err := pgtest.ListenRelay(db.Cluster.Addr())
	if err != nil {
		return nil, err
	}
	w.names, w.links = append(w.names, db.Name), append(w.links, r)
	r.Delay(pgtest.ToServer, w.delay)
	r.Delay(pgtest.ToClient, w.delay)
	if w.print {
		r.Print(&named{name: db.Name, to: to})
	}
	return db.Via(r), nil
}

func (w *wire) close() {
	for _, r := range w.links {
		r.Close()
	}
}

// told prints what each link has carried.
func (w *wire) told(out io.Writer) error {
	if len(w.links) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	return columns(out, func(t io.Writer) {
		fmt.Fprintln(t, "link\tconnections\tround trips\tCOPY and stream to the worker\tCOPY to the server")
		for i, r := range w.links {
			c := r.Counts()
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\n", w.names[i], c.Connections, c.RoundTrips, carried(c.ToClient), carried(c.ToServer))
		}
	})
}

// carried is what COPY and the streams have carried.
func carried(all map[string]pgtest.Count) string {
	const copied = "CopyData"
	return fmt.Sprintf("%.1f MB", float64(all[copied].Bytes)/1e6)
}

// printing is held for one line: links print beside each other.
var printing sync.Mutex

// named writes lines that begin with a link's name.
type named struct {
	name string
	to   io.Writer
}

func (n *named) Write(line []byte) (int, error) {
	printing.Lock()
	defer printing.Unlock()
	_, err := fmt.Fprintf(n.to, "%s: %s\n", n.name, strings.TrimRight(string(line), "\n"))
	return len(line), err
}
