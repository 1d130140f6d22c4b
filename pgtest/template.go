package pgtest

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
)

// templates holds one freshly initialised data directory per set of binaries and base directory, because initdb takes
// a second and a copy of its result a twentieth of that. They last as long as the process.
var templates struct {
	sync.Mutex
	byPlace map[templatePlace]*template
}

type templatePlace struct{ bin, base string }

type template struct {
	once sync.Once
	data string
	err  error
}

// templateData returns a data directory to copy; it is never started itself.
func templateData(ctx context.Context, in installation, base string) (string, error) {
	templates.Lock()
	if templates.byPlace == nil {
		templates.byPlace = map[templatePlace]*template{}
	}
	place := templatePlace{in.Bin, base}
	t := templates.byPlace[place]
	if t == nil {
		t = &template{}
		templates.byPlace[place] = t
	}
	templates.Unlock()
	t.once.Do(func() { t.data, t.err = initialise(ctx, in, base) })
	return t.data, t.err
}

func initialise(ctx context.Context, in installation, base string) (string, error) {
	sweep(base)
	k, err := newKeeper(base, 0)
	if err != nil {
		return "", err
	}
	data := filepath.Join(k.Dir, "data")
	initdb := quote(filepath.Join(in.Bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync") + " --locale="
	// C.UTF-8 is missing on a few systems; either sorts by bytes.
	if _, err := k.Do(ctx, initdb+"C.UTF-8 || { rm -rf "+quote(data)+"; "+initdb+"C; }"); err != nil {
		k.Close()
		return "", fmt.Errorf("initdb: %w", err)
	}
	return data, nil
}
