module everyday

go 1.22

require github.com/bradfitz/gomemcache v0.0.0-20230905024940-24af94b03874
