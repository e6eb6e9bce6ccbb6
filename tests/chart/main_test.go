package main

import (
	"strings"
	"testing"
)

const good = `
apiVersion: v1
kind: Service
metadata:
  name: locks
  namespace: shop
spec:
  clusterIP: None
  ports:
    - name: grpc
      port: 7450
`

func TestGoodDocumentsAreCounted(t *testing.T) {
	var out strings.Builder
	objects, faults := run([]byte("---\n# nothing\n---"+good), &out)
	if objects != 1 || faults != 0 {
		t.Fatalf("%d objects, %d faults: %s", objects, faults, out.String())
	}
}

func TestEachFaultIsFound(t *testing.T) {
	for _, fault := range []struct{ from, to, why string }{
		{"clusterIP:", "clusterIp:", `unknown field "spec.clusterIp"`},
		{"      port:", "      prot:", `unknown field "spec.ports[0].prot"`},
		{"      port: 7450", "      port: 7450\n      port: 7451", `"port" already set`},
		{"port: 7450", "port: many", "cannot unmarshal"},
		{"kind: Service", "kind: Servcie", "unknown kind"},
		{"  name: locks\n", "", "metadata.name is missing"},
		{"  namespace: shop\n", "", "metadata.namespace is missing"},
		{good, good + "---" + good, "there are two"},
	} {
		var out strings.Builder
		bad := strings.Replace(good, fault.from, fault.to, 1)
		if bad == good {
			t.Fatalf("%q is not there", fault.from)
		}
		_, faults := run([]byte(bad), &out)
		if faults != 1 || !strings.Contains(out.String(), fault.why) {
			t.Errorf("%q: %d faults, not %q: %s", fault.to, faults, fault.why, out.String())
		}
	}
}
