package move

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgservicefile"
)

// serviceName is the one section of the service file the programs are given.
const serviceName = "pgreshard"

var errConninfo = errors.New("the connection string is neither a URI nor a list of key=value")

// parseConninfo reads a libpq connection string, either form, into its parameters. A service it names is read too:
// a service file may not name another. Errors never show the string.
func parseConninfo(s string) (map[string]string, error) {
	params, err := parseURI(s)
	if errors.Is(err, errNoURI) {
		params, err = parseKeywords(s)
	}
	if err != nil {
		return nil, err
	}
	return withService(params)
}

var errNoURI = errors.New("not a URI")

// parseURI reads postgresql://[user[:password]@][host[:port],…][/dbname][?name=value&…]; every part is
// percent-encoded.
func parseURI(s string) (map[string]string, error) {
	rest, ok := strings.CutPrefix(s, "postgres://")
	if !ok {
		if rest, ok = strings.CutPrefix(s, "postgresql://"); !ok {
			return nil, errNoURI
		}
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, database, _ := strings.Cut(rest, "/")
	params := map[string]string{}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, password, _ := strings.Cut(authority[:i], ":")
		params["user"], params["password"] = user, password
		authority = authority[i+1:]
	}
	params["host"], params["port"] = splitHosts(authority)
	params["dbname"] = database
	for pair := range strings.SplitSeq(query, "&") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			if name == "ssl" && value == "true" {
				name, value = "sslmode", "require"
			}
			params[name] = value
		}
	}
	for name, value := range params {
		plain, err := url.PathUnescape(value)
		if err != nil {
			return nil, errConninfo
		}
		params[name] = plain
		if plain == "" {
			delete(params, name)
		}
	}
	return params, nil
}

// splitHosts separates host:port,host:port into a list of hosts and a list of ports.
func splitHosts(authority string) (hosts, ports string) {
	var h, p []string
	for one := range strings.SplitSeq(authority, ",") {
		host, port := one, ""
		if i := strings.LastIndexByte(one, ':'); i > strings.LastIndexByte(one, ']') {
			host, port = one[:i], one[i+1:]
		}
		h = append(h, strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
		p = append(p, port)
	}
	if ports = strings.Join(p, ","); strings.Trim(ports, ",") == "" {
		ports = ""
	}
	return strings.Join(h, ","), ports
}

// parseKeywords reads name = value, where a value in single quotes may hold blanks and \' and \\.
func parseKeywords(s string) (map[string]string, error) {
	params := map[string]string{}
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimLeft(s, " \t\n\r\f\v") {
		name, rest, ok := strings.Cut(s, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(name, " \t\n'") {
			return nil, errConninfo
		}
		rest = strings.TrimLeft(rest, " \t\n\r\f\v")
		quoted := strings.HasPrefix(rest, "'")
		rest = strings.TrimPrefix(rest, "'")
		var value strings.Builder
		i, closed := 0, !quoted
	scan:
		for ; i < len(rest); i++ {
			switch c := rest[i]; {
			case c == '\\' && i+1 < len(rest):
				i++
				value.WriteByte(rest[i])
			case quoted && c == '\'':
				i, closed = i+1, true
				break scan
			case !quoted && strings.IndexByte(" \t\n\r\f\v", c) >= 0:
				break scan
			default:
				value.WriteByte(c)
			}
		}
		if !closed {
			return nil, errConninfo
		}
		params[name] = value.String()
		s = rest[i:]
	}
	return params, nil
}

// withService adds what a service of the operator's own says and the string leaves open.
func withService(params map[string]string) (map[string]string, error) {
	name := params["service"]
	if name == "" {
		name = os.Getenv("PGSERVICE")
	}
	if name == "" {
		return params, nil
	}
	path := params["servicefile"]
	if path == "" {
		path = os.Getenv("PGSERVICEFILE")
	}
	if home, err := os.UserHomeDir(); path == "" && err == nil {
		path = filepath.Join(home, ".pg_service.conf")
	}
	file, err := pgservicefile.ReadServicefile(path)
	if err != nil {
		return nil, fmt.Errorf("read the service file: %w", err)
	}
	service, err := file.GetService(name)
	if err != nil {
		return nil, fmt.Errorf("service %q is not in the service file", name)
	}
	out := maps.Clone(service.Settings)
	maps.Copy(out, params)
	delete(out, "service")
	delete(out, "servicefile")
	return out, nil
}

// serviceFile writes parameters as the one section of a service file.
func serviceFile(params map[string]string) string {
	var b strings.Builder
	b.WriteString("[" + serviceName + "]\n")
	for _, name := range slices.Sorted(maps.Keys(params)) {
		fmt.Fprintf(&b, "%s=%s\n", name, strings.ReplaceAll(params[name], "\n", " "))
	}
	return b.String()
}
