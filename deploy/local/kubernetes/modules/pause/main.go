// The first process of a pod: it holds the pod's namespaces and reaps what is orphaned in them, until it is told to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for reaped, err := 1, error(nil); reaped > 0 && err == nil; {
			reaped, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
