package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"pgreshard/pgtest"
)

const deploy = "../../deploy/"

func read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// found is the one part of a text in parentheses.
func found(t *testing.T, text, form string) string {
	t.Helper()
	m := regexp.MustCompile(form).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("there is no %s", form)
	}
	return m[1]
}

// understood fails where the program would not take these words.
func understood(t *testing.T, words []string) {
	t.Helper()
	root := (&app{}).root()
	c, rest, err := root.Find(words)
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err != nil || c == root {
		t.Errorf("pgreshard %v: %v", words, err)
	}
}

// notAgain are the exit codes after which the same command is of no use.
var notAgain = []int{exitUsage, exitCheck, exitUnknown}

// image is what the others rely on of the image.
type image struct{ user, dir, state string }

func readImage(t *testing.T) image {
	t.Helper()
	text := read(t, deploy+"Dockerfile")
	i := image{found(t, text, `(?m)^USER (\d+):\d+$`), found(t, text, `(?m)^WORKDIR (/etc/.*)$`), found(t, text, `PGRESHARD_STATE_DIR=(\S+)`)}
	if i.user == "0" {
		t.Error("the image runs as root")
	}
	if version := found(t, read(t, "../../go.mod"), `(?m)^go (\d+\.\d+)`); !strings.Contains(text, "FROM golang:"+version+" ") || !strings.Contains(text, "CGO_ENABLED=0 go build") {
		t.Errorf("the image is not built statically with Go %s", version)
	}
	if !strings.Contains(text, `ENTRYPOINT ["/usr/local/bin/pgreshard"]`) || !strings.Contains(text, "/pgreshard /usr/local/bin/pgreshard") {
		t.Error("the program is not where it is started")
	}
	return i
}

// probe, pod and object are what is looked at of Kubernetes' objects.
type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

type pod struct {
	RestartPolicy   string `yaml:"restartPolicy"`
	SecurityContext struct {
		RunAsNonRoot bool   `yaml:"runAsNonRoot"`
		RunAsUser    string `yaml:"runAsUser"`
		FSGroup      string `yaml:"fsGroup"`
	} `yaml:"securityContext"`
	Containers []struct {
		Name, Image     string
		Args            []string
		Ports           []struct{ Name, ContainerPort string }
		LivenessProbe   probe `yaml:"livenessProbe"`
		ReadinessProbe  probe `yaml:"readinessProbe"`
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	Volumes []volume
}

type volume struct{ Name string }

type object struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Replicas         int
		Strategy         struct{ Type string }
		PodFailurePolicy struct {
			Rules []struct {
				Action      string
				OnExitCodes struct {
					ContainerName, Operator string
					Values                  []int
				} `yaml:"onExitCodes"`
			}
		} `yaml:"podFailurePolicy"`
		Template struct{ Spec pod }
	}
}

func TestKubernetesIsAskedForWhatTheImageIsMadeFor(t *testing.T) {
	t.Parallel()
	image, objects := readImage(t), map[string]object{}
	for from := yaml.NewDecoder(strings.NewReader(read(t, deploy+"kubernetes.yaml"))); ; {
		var o object
		if err := from.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		objects[o.Kind] = o
	}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := objects["ConfigMap"].Data["pgreshard.toml"]
	const secrets = "/run/secrets/pgreshard"
	c, err := parseConfig("kubernetes.yaml", []byte(strings.ReplaceAll(file, secrets+"/password", password)))
	if err != nil || !strings.Contains(file, secrets+"/password") {
		t.Fatal(err)
	}
	for kind, hold := range map[string]string{"Deployment": "serve", "Job": "--yes"} {
		t.Run(kind, func(t *testing.T) {
			o := objects[kind]
			p := o.Spec.Template.Spec
			if len(p.Containers) != 1 || !p.SecurityContext.RunAsNonRoot || p.SecurityContext.RunAsUser != image.user || p.SecurityContext.FSGroup != image.user {
				t.Fatalf("%+v", p)
			}
			worker := p.Containers[0]
			understood(t, worker.Args)
			if !slices.Contains(worker.Args, hold) {
				t.Errorf("arguments %v", worker.Args)
			}
			if s := worker.SecurityContext; s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
				t.Errorf("security context %+v", s)
			}
			if worker.LivenessProbe.HTTPGet != (struct{ Path, Port string }{"/healthz", "http"}) || worker.ReadinessProbe.HTTPGet != (struct{ Path, Port string }{"/readyz", "http"}) {
				t.Errorf("probes %+v, %+v", worker.LivenessProbe, worker.ReadinessProbe)
			}
			if len(worker.Ports) != 1 || worker.Ports[0].Name != "http" || !strings.HasSuffix(c.HTTP.Listen, ":7432") {
				t.Errorf("ports %+v, listen %s", worker.Ports, c.HTTP.Listen)
			}
			mounts := map[string]string{}
			for _, m := range worker.VolumeMounts {
				mounts[m.MountPath] = m.Name
			}
			for _, path := range []string{image.dir, image.state, secrets, "/tmp"} {
				if !slices.Contains(p.Volumes, volume{mounts[path]}) {
					t.Errorf("nothing is mounted at %s: %v", path, mounts)
				}
			}
		})
	}
	if d := objects["Deployment"].Spec; d.Replicas < 2 || d.Strategy.Type != "Recreate" {
		t.Errorf("a pod that waits is never ready, so none may be waited for: %d replicas, %s", d.Replicas, d.Strategy.Type)
	}
	job := objects["Job"].Spec
	if rule := job.PodFailurePolicy.Rules[0]; rule.Action != "FailJob" || !slices.Equal(rule.OnExitCodes.Values, notAgain) || job.Template.Spec.RestartPolicy != "Never" {
		t.Errorf("the job's rule: %+v, restartPolicy %s", rule, job.Template.Spec.RestartPolicy)
	}
}

// The file to try it out with is one that works, with the rows it comes with.
func TestWhatComposeStartsIsAMoveThatCanBegin(t *testing.T) {
	t.Parallel()
	image := readImage(t)
	var file struct {
		Services map[string]struct {
			Image, User string
			Command     []string
			Environment map[string]string
			Volumes     []string
			ReadOnly    bool `yaml:"read_only"`
			Tmpfs       []string
			DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, deploy+"compose/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	worker := file.Services["pgreshard"]
	understood(t, worker.Command)
	if !slices.Contains(worker.Volumes, "./pgreshard.toml:"+image.dir+"/pgreshard.toml:ro") || !slices.Contains(worker.Tmpfs, image.state+":uid="+image.user+",gid="+image.user+",mode=0700") || !worker.ReadOnly {
		t.Errorf("the worker: %+v", worker)
	}
	cluster := pgtest.Shared(t)
	text := strings.Replace(read(t, deploy+"compose/pgreshard.toml"), "0.0.0.0:7432", freePort(t), 1)
	text = strings.Replace(text, `name = "shop"`, `name = "compose"`, 1)
	for _, name := range []string{"source", "shard0", "shard1"} {
		db, server := cluster.Database(t), file.Services[name]
		if worker.DependsOn[name].Condition != "service_healthy" || !slices.Contains(server.Command, "wal_level=logical") || server.Environment["POSTGRES_DB"] != "shop" {
			t.Errorf("%s: %+v", name, server)
		}
		if server.Environment["POSTGRES_PASSWORD"] != worker.Environment["MOVER_PASSWORD"] {
			t.Error("the worker has another password")
		}
		if name == "source" {
			if !slices.Contains(server.Volumes, "./source.sql:/docker-entrypoint-initdb.d/source.sql:ro") {
				t.Errorf("the source's rows: %v", server.Volumes)
			}
			db.Exec(t, read(t, deploy+"compose/source.sql"))
		}
		if !strings.Contains(text, "@"+name+"/shop") {
			t.Errorf("the file has no %s", name)
		}
		text = strings.Replace(text, "@"+name+"/shop", fmt.Sprintf("@%s/%s", cluster.Addr(), db.Name), 1)
	}
	config := filepath.Join(t.TempDir(), "pgreshard.toml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, said := start(t, []string{"MOVER_PASSWORD=x", stateVariable + "=" + t.TempDir()}, "-c", config, "plan").wait(t); code != exitDone {
		t.Errorf("plan ended with %d:\n%s", code, said)
	}
}

func TestTheUnitStartsAWorkerAndKnowsWhenNotTo(t *testing.T) {
	t.Parallel()
	unit := read(t, deploy+"systemd/pgreshard@.service")
	words := strings.Fields(found(t, unit, `(?m)^ExecStart=/usr/local/bin/pgreshard (.*)$`))
	understood(t, words)
	var codes []int
	for _, code := range strings.Fields(found(t, unit, `(?m)^RestartPreventExitStatus=(.*)$`)) {
		n, err := strconv.Atoi(code)
		if err != nil {
			t.Fatal(err)
		}
		codes = append(codes, n)
	}
	if !slices.Equal(codes, notAgain) {
		t.Errorf("it is not started again after %v, want %v", codes, notAgain)
	}
	if state := found(t, unit, `Environment=PGRESHARD_STATE_DIR=/var/lib/(.*)`); state != found(t, unit, `StateDirectory=(.*)`) {
		t.Errorf("the state directory is another than %s", state)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not here to read the unit")
	}
	file := filepath.Join(t.TempDir(), "pgreshard@shop.service")
	if err := os.WriteFile(file, bytes.ReplaceAll([]byte(unit), []byte("/usr/local/bin/pgreshard"), []byte(binary(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, said)
	}
}
