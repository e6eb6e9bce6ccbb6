package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redlock is Redlock over independent Redis servers. It has no fencing token, and its queue is whoever tries at the right
// moment. Without an end to its tries, which by default are 32.
type redlock struct {
	servers []*redis.Client
	sync    *redsync.Redsync
	ttl     time.Duration
	bytes   int
}

func newRedlock(endpoints []string, ttl time.Duration, bytes int) (*redlock, error) {
	r := &redlock{ttl: ttl, bytes: bytes}
	var pools []redsyncredis.Pool
	for _, endpoint := range endpoints {
		server := redis.NewClient(&redis.Options{Addr: endpoint})
		r.servers = append(r.servers, server)
		pools = append(pools, goredis.NewPool(server))
	}
	r.sync = redsync.New(pools...)
	return r, nil
}

func (r *redlock) close() {
	for _, server := range r.servers {
		server.Close()
	}
}

func (r *redlock) locker(_ context.Context, _ int, key string) (locker, error) {
	mutex := r.sync.NewMutex("lock:"+key, redsync.WithExpiry(r.ttl), redsync.WithTries(1<<30))
	return &redlockLocker{r, mutex, "data:" + key}, nil
}

type redlockLocker struct {
	*redlock
	mutex *redsync.Mutex
	key   string
}

func (l *redlockLocker) lock(ctx context.Context) error { return l.mutex.LockContext(ctx) }

func (l *redlockLocker) unlock(ctx context.Context) error {
	released, err := l.mutex.UnlockContext(ctx)
	if err == nil && !released {
		err = errors.New("the lock was not held any more")
	}
	return err
}

// each asks all servers at once, and returns once a majority did it, or cannot any more.
func (l *redlockLocker) each(ask func(*redis.Client) error) error {
	answers := make(chan error, len(l.servers))
	for _, server := range l.servers {
		go func() { answers <- ask(server) }()
	}
	done := 0
	var failed []error
	for range l.servers {
		if err := <-answers; err != nil {
			failed = append(failed, err)
		} else if done++; done > len(l.servers)/2 {
			return nil
		}
	}
	return errors.Join(failed...)
}

// read takes the highest counter of a majority.
func (l *redlockLocker) read(ctx context.Context) (uint64, error) {
	var mutex sync.Mutex
	var highest uint64
	err := l.each(func(server *redis.Client) error {
		value, err := server.Get(ctx, l.key).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil {
			return err
		}
		counter, err := decode(value)
		mutex.Lock()
		defer mutex.Unlock()
		highest = max(highest, counter)
		return err
	})
	// The slowest may still answer.
	mutex.Lock()
	defer mutex.Unlock()
	return highest, err
}

func (l *redlockLocker) write(ctx context.Context, counter uint64) error {
	return l.each(func(server *redis.Client) error {
		return server.Set(ctx, l.key, encode(counter, l.bytes), 0).Err()
	})
}
