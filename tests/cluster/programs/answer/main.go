// A web server for tests, and a client that asks one, as small as an image can be.
//
//	answer              answers on PORT with its words (ANSWER), and for /pod with its pod's name; ends in good order
//	answer -ask URL     prints the status and the answer; fails unless it is 200. -header Name:Value, as often as wanted
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	url := flag.String("ask", "", "ask this instead of serving")
	header := http.Header{}
	flag.Func("header", "Name:Value, sent with what is asked", func(text string) error {
		name, value, _ := strings.Cut(text, ":")
		header.Set(name, value)
		return nil
	})
	flag.Parse()
	if *url != "" {
		ask(*url, header)
		return
	}
	serve()
}

func ask(url string, header http.Header) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		log.Fatal(err)
	}
	request.Header = header
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(response.StatusCode, string(body))
	if response.StatusCode != http.StatusOK {
		os.Exit(1)
	}
}

func serve() {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	http.HandleFunc("/", func(writer http.ResponseWriter, _ *http.Request) { fmt.Fprint(writer, os.Getenv("ANSWER")) })
	http.HandleFunc("/pod", func(writer http.ResponseWriter, _ *http.Request) { fmt.Fprint(writer, os.Getenv("HOSTNAME")) })
	server := &http.Server{Addr: ":" + port}
	told, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ended := make(chan struct{})
	go func() {
		<-told.Done()
		_ = server.Shutdown(context.Background())
		close(ended)
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
	<-ended
}
