package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"pgreshard/pg"
)

// address is a connection string as the file has it, with ${NAME} and ${file:/path} in place of what must not stand
// there. It is never printed.
type address string

var placeholder = regexp.MustCompile(`\$\{([^}]*)\}`)

// expand puts in what the placeholders name. It is called at each connect, so a rotated secret needs no restart. Its
// error names every variable and file that is missing.
func (a address) expand() (string, error) {
	var missing []string
	text := placeholder.ReplaceAllStringFunc(string(a), func(p string) string {
		value, err := resolve(placeholder.FindStringSubmatch(p)[1])
		if err != nil {
			missing = append(missing, err.Error())
		}
		return value
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("%s", strings.Join(missing, "; "))
	}
	return text, nil
}

// resolve reads one placeholder; name is what stands between the braces.
func resolve(name string) (string, error) {
	if path, ok := strings.CutPrefix(name, "file:"); ok {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("${%s} cannot be read: %w", name, err)
		}
		return strings.TrimRight(string(text), "\r\n"), nil
	}
	value, ok := os.LookupEnv(name)
	if !ok {
		return "", fmt.Errorf("the environment variable %s is not set", name)
	}
	return value, nil
}

// shards are the nodes of a cluster for the packages that connect, numbered as in the file.
func (c clusterSection) shards() []pg.Shard {
	list := make([]pg.Shard, len(c.Shards))
	for i, s := range c.Shards {
		list[i] = pg.Shard{Number: i, URL: s.URL.expand}
	}
	return list
}
