package notice

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Server is a NATS server with JetStream inside this process.
type Server struct{ server *server.Server }

const serverStart = 10 * time.Second

// Serve starts a server that keeps what it is told in a directory and has written it to disk before it says so. It
// listens at the host and port of an address (nats://127.0.0.1:4222; port 0 is a free one), or, where that is empty,
// serves this process alone.
func Serve(dir, address string) (*Server, error) {
	o := &server.Options{ServerName: "pgreshard", JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true, NoLog: true, DontListen: address == ""}
	if address != "" {
		if err := listenAt(o, address); err != nil {
			return nil, err
		}
	}
	s, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("start the NATS server: %w", err)
	}
	go s.Start()
	if !s.ReadyForConnections(serverStart) {
		s.Shutdown()
		return nil, errors.New("the NATS server inside this process does not start; hint: [nats] store_dir must be writable and of this process alone, and the port of url free")
	}
	return &Server{s}, nil
}

func listenAt(o *server.Options, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return errors.New("the NATS server's address is no URL; hint: nats://127.0.0.1:4222")
	}
	o.Host, o.Port = u.Hostname(), server.DEFAULT_PORT
	if u.Port() != "" {
		if o.Port, err = strconv.Atoi(u.Port()); err != nil {
			return fmt.Errorf("the NATS server's port: %w", err)
		}
	}
	if o.Port == 0 {
		o.Port = server.RANDOM_PORT
	}
	if password, ok := u.User.Password(); ok {
		o.Username, o.Password = u.User.Username(), password
	} else if u.User != nil {
		o.Authorization = u.User.Username() // a token
	}
	return nil
}

// Address is where the server listens, as a URL without credentials; empty where it does not.
func (s *Server) Address() string {
	if a, ok := s.server.Addr().(*net.TCPAddr); ok {
		return "nats://" + a.String()
	}
	return ""
}

// Close ends the server once it has written what it has.
func (s *Server) Close() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

// within makes a connection that does not leave the process.
func (s *Server) within() nats.Option { return nats.InProcessServer(s.server) }
