package main

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"go.uber.org/zap"
)

// etcd is a few connections; each worker has a session of its own, as a process would.
type etcd struct {
	clients []*clientv3.Client
	ttl     time.Duration
	bytes   int
	system  string
	// By worker.
	sessions map[int]*concurrency.Session
}

// newEtcd connects. etcd-v3lock: the lock service of the server. etcd-mutex: the recipe of the client library, which waits for the
// deletion of the key before its own. etcd-txn: the same, but the write and the unlock are one transaction.
func newEtcd(endpoints []string, connections int, ttl time.Duration, bytes int, system string) (*etcd, error) {
	e := &etcd{ttl: ttl, bytes: bytes, system: system, sessions: map[int]*concurrency.Session{}}
	for range connections {
		client, err := clientv3.New(clientv3.Config{
			Endpoints:   endpoints,
			DialTimeout: 5 * time.Second,
			Logger:      zap.NewNop(),
		})
		if err != nil {
			e.close()
			return nil, err
		}
		e.clients = append(e.clients, client)
	}
	return e, nil
}

func (e *etcd) close() {
	for _, client := range e.clients {
		client.Close()
	}
}

// etcdValue is the counter: a linearizable read, which is etcd's default, and a put.
type etcdValue struct {
	client *clientv3.Client
	key    string
	bytes  int
}

func (v etcdValue) read(ctx context.Context) (uint64, error) {
	answer, err := v.client.Get(ctx, v.key)
	if err != nil || len(answer.Kvs) == 0 {
		return 0, err
	}
	return decode(string(answer.Kvs[0].Value))
}

func (v etcdValue) write(ctx context.Context, counter uint64) error {
	_, err := v.client.Put(ctx, v.key, encode(counter, v.bytes))
	return err
}

func (e *etcd) locker(ctx context.Context, worker int, key string) (locker, error) {
	client := e.clients[worker/workersPerConnection]
	session := e.sessions[worker]
	if session == nil {
		lease, err := client.Grant(ctx, int64(e.ttl.Seconds()))
		if err != nil {
			return nil, err
		}
		session, err = concurrency.NewSession(client, concurrency.WithLease(lease.ID))
		if err != nil {
			return nil, err
		}
		e.sessions[worker] = session
	}
	value := etcdValue{client, "data/" + key, e.bytes}
	name := "lock/" + key
	switch e.system {
	case "etcd-v3lock":
		lock := v3lockpb.NewLockClient(client.ActiveConnection())
		return &etcdCalls{etcdValue: value, calls: lock, session: session, name: []byte(name)}, nil
	case "etcd-txn":
		return &etcdTxn{etcdRecipe: etcdRecipe{value, concurrency.NewMutex(session, name)}}, nil
	default:
		return &etcdRecipe{value, concurrency.NewMutex(session, name)}, nil
	}
}

// etcdRecipe is concurrency.Mutex.
type etcdRecipe struct {
	etcdValue
	mutex *concurrency.Mutex
}

func (r *etcdRecipe) lock(ctx context.Context) error   { return r.mutex.Lock(ctx) }
func (r *etcdRecipe) unlock(ctx context.Context) error { return r.mutex.Unlock(ctx) }

// etcdTxn is the same in a call less: while the lock is held, one transaction writes and gives it up.
type etcdTxn struct {
	etcdRecipe
	unlocked bool
}

func (t *etcdTxn) lock(ctx context.Context) error {
	t.unlocked = false
	return t.etcdRecipe.lock(ctx)
}

func (t *etcdTxn) write(ctx context.Context, counter uint64) error {
	put := clientv3.OpPut(t.key, encode(counter, t.bytes))
	both := t.client.Txn(ctx).If(t.mutex.IsOwner()).Then(put, clientv3.OpDelete(t.mutex.Key()))
	answer, err := both.Commit()
	if err == nil && !answer.Succeeded {
		err = errors.New("the lock was not held any more")
	}
	t.unlocked = err == nil
	return err
}

func (t *etcdTxn) unlock(ctx context.Context) error {
	if t.unlocked {
		return nil
	}
	return t.etcdRecipe.unlock(ctx)
}

// etcdCalls is the lock service of the server.
type etcdCalls struct {
	etcdValue
	calls   v3lockpb.LockClient
	session *concurrency.Session
	name    []byte
	held    []byte
}

func (c *etcdCalls) lock(ctx context.Context) error {
	lease := int64(c.session.Lease())
	answer, err := c.calls.Lock(ctx, &v3lockpb.LockRequest{Name: c.name, Lease: lease})
	if err == nil {
		c.held = answer.Key
	}
	return err
}

func (c *etcdCalls) unlock(ctx context.Context) error {
	_, err := c.calls.Unlock(ctx, &v3lockpb.UnlockRequest{Key: c.held})
	return err
}
